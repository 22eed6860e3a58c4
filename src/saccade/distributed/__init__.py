"""Joining a process group and reducing over it; models and layers do not depend on it."""
