"""Figures: queries, points, layout and drawing."""
