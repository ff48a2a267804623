"""What runs where, and what waits where: stages, recomputation, phases, locations."""
