"""Rucio: client, catalogue, uploads and replication rules."""
