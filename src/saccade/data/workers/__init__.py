"""Processes that examine and encode chunks of pairs."""
