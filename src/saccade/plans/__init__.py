"""Compiled execution of particular models for inference; models and layers do not know about it."""
