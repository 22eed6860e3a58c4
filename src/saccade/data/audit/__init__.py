"""What is wrong with some data."""
