"""Training checkpoints: saving, loading, averaging, checks on resume, starting from a trained model."""
