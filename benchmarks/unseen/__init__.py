"""What is foreseen of models that nobody here has written or tuned, beside their compiles."""
