"""Models in the formats of others: what a tensor is called there, and which settings a format can express."""
