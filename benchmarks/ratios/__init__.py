"""Ratios of times that are to stay: a compile, a call and a question beside a yardstick."""
