"""Writing, comparing and measuring files in a process with ROOT."""
