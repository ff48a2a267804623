"""What to change: costs of Blocks, predictions, levers, searches, and the answers made of them."""
