"""One paper, one file; no model file imports another."""
