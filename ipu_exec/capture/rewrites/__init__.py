"""Operators that the capture replaces, joins or takes apart."""
