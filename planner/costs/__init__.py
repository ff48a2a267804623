"""What each Block costs: cycles, bytes and traffic, read from a profile."""
