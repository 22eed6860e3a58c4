"""Starting processes and summing over them; models and layers know nothing of it."""
