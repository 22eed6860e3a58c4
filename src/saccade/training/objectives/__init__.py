"""Training objectives (loss functions), one per file."""
