"""Figures: parameters, points, layout and drawing."""
