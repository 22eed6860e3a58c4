"""Benchmarks: speed, memory and quality beside the machine's limits and beside others' programs."""
