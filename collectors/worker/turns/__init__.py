"""Turns of two live payloads: order, pipes, pinning, and the ratio of their times."""
