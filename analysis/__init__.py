"""Statistics, comparison of releases and attribution of slowdowns."""
