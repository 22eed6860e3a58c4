"""Metrics, significance tests and reports."""
