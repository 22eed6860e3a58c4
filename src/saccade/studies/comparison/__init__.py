"""Several models on the same data and the same budget, side by side."""
