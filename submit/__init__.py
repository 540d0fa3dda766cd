"""Submission: sites, planning, templates, batch systems, tracking."""
