"""PopTorch's own tests, unchanged, on IPUscope: ``python -m tools.poptorch_suite CHECKOUT``."""
