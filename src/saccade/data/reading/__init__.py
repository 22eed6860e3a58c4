"""Reading input files: text lines, sentence pairs, formats, normalization."""
