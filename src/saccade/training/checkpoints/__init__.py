"""Training checkpoints: written, read, averaged, started from."""
