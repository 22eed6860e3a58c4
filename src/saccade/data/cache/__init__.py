"""The token cache: tokenized corpora on disk."""
