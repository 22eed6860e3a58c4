"""Word translations learnt from pairs."""
