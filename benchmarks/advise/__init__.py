"""Scripts that `ipu-report advise` is tried on: docs/advice.md."""
