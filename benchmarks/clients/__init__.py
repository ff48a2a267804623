"""Public programs written for the vendor's libpva, run on our profiles."""
