"""Comparison of several models on one data set and one budget."""
