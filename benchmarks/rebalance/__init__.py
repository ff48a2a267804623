"""What rebalancing gains, and whether the second compile agrees.

``python -m benchmarks.rebalance``.
"""
