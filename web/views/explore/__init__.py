"""The explore page."""
