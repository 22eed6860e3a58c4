"""Table 1 of Vaswani et al. 2017, measured: time, memory, dependent steps and path lengths of the layers themselves."""
