"""CPU kernels in C, their loader and the ctypes view of their structures; called by `ops` and `plans` alone."""
