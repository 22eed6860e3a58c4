"""Scores of outputs against references, comparison of systems, plots."""
