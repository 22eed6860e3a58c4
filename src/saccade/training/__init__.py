"""Training: objectives, learning rate schedules, the training loop, checkpoints, and the run directory."""
