"""Rendering of planned jobs for a batch system."""
