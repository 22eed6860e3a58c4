"""Batch sampling: shuffling, length bucketing, mixing of corpora, collation."""
