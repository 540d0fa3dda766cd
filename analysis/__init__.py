"""What it means: statistics, comparison of releases, attribution."""
