"""Files to examples to token-bucketed batches."""
