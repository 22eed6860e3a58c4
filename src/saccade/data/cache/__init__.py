"""Tokenised corpora on disk."""
