"""One run on disk and as a process: directory, lock, log and metrics, data, signals, model card."""
