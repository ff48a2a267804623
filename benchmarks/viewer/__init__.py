"""How fast the viewer answers on large profiles: ``python -m benchmarks.viewer``."""
