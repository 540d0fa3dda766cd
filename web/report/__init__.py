"""The self-contained campaign report."""
