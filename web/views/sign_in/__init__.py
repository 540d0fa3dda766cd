"""Signing in and out, where reading requires it."""
