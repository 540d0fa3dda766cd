"""Searches, counts and reads of single files that run beside campaigns."""
