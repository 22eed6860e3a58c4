"""Durations and amounts of memory as text."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Format a number of bytes as 250 MB or 1.25 GB."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.0f} MB"


def format_duration(seconds: float) -> str:
    """Format seconds as 42 s, 3 min or 1 h 05 min."""
    seconds = max(0.0, seconds)
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
