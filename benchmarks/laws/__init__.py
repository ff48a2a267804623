"""Laws that every prediction obeys, on random shapes (``python -m benchmarks.laws --help``)."""
