"""Checks of the data and forecasts of memory and time before a run starts."""
