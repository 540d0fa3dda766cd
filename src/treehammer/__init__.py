"""Treehammer: identical ROOT TTree read tests at many grid sites, compared honestly."""

from treehammer.version import __version__

__all__ = ["__version__"]
