"""One file a program that we measure: each runs in its own environment, is given a job and prints a result."""
