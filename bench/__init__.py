"""Benchmarks: speed, memory and quality, compared with machine limits and other toolkits."""
