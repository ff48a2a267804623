"""The levers that a user may pull, and their effect on costs."""
