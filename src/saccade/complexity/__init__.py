"""What layers cost as their input grows, measured."""
