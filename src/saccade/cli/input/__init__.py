"""Input of commands: sentences on the command line, in a file or on standard input."""
