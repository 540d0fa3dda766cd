"""Folder catalogue; adding, verifying and rewriting its datasets."""
