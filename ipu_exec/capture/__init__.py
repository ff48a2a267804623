"""One training step on fake tensors, as a graph."""
