"""Data: reading files, tokenizers, the token cache, batches."""
