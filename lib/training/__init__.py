"""Training runs: the loop, and what happens around it."""
