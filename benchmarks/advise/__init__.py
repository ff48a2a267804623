"""Scripts on which `ipu-report advise` is tried out (docs/advice.md)."""
