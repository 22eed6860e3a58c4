"""Data audit: duplicates, suspicious characters, overlaps, and the data report."""
