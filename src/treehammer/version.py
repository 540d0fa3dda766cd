"""The package's version: one place, read by packaging, records and ``--version``."""

__version__ = "0.3.0"
