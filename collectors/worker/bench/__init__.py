"""Benchmark of one storage, ``python worker.pyz bench PATH_OR_URL``: no plan, no other software."""
