"""The command line: one file per command; `options/` reads arguments, `output/` writes results and errors."""
