"""Scripts that make pages of the documentation."""
