"""What is measured rather than tested: fidelity to published numbers, speed of the compiler."""
