"""Every variable on the tiles, and whether it all fits."""
