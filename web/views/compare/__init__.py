"""The comparison page."""
