"""Operators over tiles, a kind in each file."""
