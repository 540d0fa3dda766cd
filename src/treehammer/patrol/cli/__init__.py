"""Command line of patrols."""
