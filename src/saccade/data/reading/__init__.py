"""Reading files: lines, pairs, formats, normalization."""
