"""`ipu-run` and `poprun`."""
