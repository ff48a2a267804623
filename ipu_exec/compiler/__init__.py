"""The passes from a captured graph to an executable."""
