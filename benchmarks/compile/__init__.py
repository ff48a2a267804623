"""How long compiling takes, and how much memory: ``python -m benchmarks.compile``."""
