"""The program of each IPU: bodies of bulk-synchronous steps."""
