"""Objectives, schedules, the one loop, and the record of a run."""
