"""Layers: attention and other operations as functions, and modules that hold their weights and call them."""
