"""An executable as the rows of its profile."""
