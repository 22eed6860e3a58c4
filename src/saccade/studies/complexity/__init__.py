"""Table 1 of Vaswani et al. 2017, measured: time, memory, sequential operations and path lengths of layers."""
