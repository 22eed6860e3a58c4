"""Tokenizers: training, files, encoding, BPE-dropout."""
