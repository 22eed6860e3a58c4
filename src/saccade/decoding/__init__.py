"""Decoding: greedy search, beam search, sampling and their constraints, for any model of the interface."""
