"""The numbers of a call, by PyTorch."""
