"""Runs public programs written for the vendor's libpva on our profiles."""
