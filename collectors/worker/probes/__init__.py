"""Probes of the node, its processes, page cache, credentials and storage."""
