"""The token cache: tokenised corpora on disk."""
