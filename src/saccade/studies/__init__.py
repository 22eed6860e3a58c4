"""Measurements over several models or layers."""
