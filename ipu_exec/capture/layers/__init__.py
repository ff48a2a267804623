"""Equal layers, captured once."""
