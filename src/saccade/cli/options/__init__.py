"""Command-line options: parsing, dotted settings, and the option groups that several commands share."""
