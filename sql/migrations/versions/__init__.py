"""Revisions of the database, in order."""
