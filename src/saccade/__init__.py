"""Saccade: train, run, explain and serve attention models."""

__version__ = "0.1.0"
