"""What `ipu_exec.options` is made of: groups of options, and where options come from."""
