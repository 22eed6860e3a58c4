"""Bilingual lexicons: learning them from parallel text, and their file format."""
