"""Datasets as values: manifest, replicas and file digests."""
