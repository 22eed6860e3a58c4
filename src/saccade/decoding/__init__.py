"""Search: greedy, beam, sampling and their constraints. Knows the interface, never a model."""
