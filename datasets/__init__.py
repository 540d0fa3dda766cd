"""Datasets: specs, generators, catalogues, replica checks."""
