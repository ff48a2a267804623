"""Products and convolutions over tiles."""
