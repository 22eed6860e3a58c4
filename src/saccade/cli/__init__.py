"""The command line: one file a verb; parse, build, call; heavy imports stay inside the verb."""
