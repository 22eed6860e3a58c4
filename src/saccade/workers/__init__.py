"""Worker processes: new Python processes that handle requests of their parent, one at a time."""
