"""What is checked and forecast before a run starts."""
