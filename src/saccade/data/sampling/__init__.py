"""Which examples make which batch, in which order."""
