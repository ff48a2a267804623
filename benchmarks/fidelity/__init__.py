"""Predictions held against published measurements: ``python -m benchmarks.fidelity``."""
