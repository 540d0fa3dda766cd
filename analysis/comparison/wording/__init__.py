"""Wording of comparisons: sentences, notes and number formats for the terminal and pages."""
