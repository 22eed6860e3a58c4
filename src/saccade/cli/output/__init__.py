"""What commands write: tables, JSON, files, attention maps and error messages."""
