"""Compiled inference of particular models; models and layers do not import it."""
