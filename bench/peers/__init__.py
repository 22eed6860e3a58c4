"""One script per measured toolkit: it runs in its own environment, reads a job and prints a result."""
