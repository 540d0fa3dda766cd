"""Diagnosis of an installation: each part with its state and remedy."""
