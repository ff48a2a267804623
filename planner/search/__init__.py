"""The search for the quickest split, with a bound for what is left."""
