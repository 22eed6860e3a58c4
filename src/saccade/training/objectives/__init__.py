"""What a batch is worth: one objective, one file."""
