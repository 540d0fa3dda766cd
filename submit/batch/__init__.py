"""Batch systems behind one interface."""
