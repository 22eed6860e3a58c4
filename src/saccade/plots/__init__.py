"""Plots: attention maps, training curves and comparisons of models, as PNG, SVG or PDF."""
