"""Laws that every prediction keeps, on random shapes (``python -m benchmarks.laws --help``)."""
