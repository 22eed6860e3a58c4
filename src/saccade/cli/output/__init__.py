"""Output of commands: tables, JSON, files, attention maps and error messages."""
