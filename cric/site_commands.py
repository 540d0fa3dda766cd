"""Command of CRIC in ``treehammer sites``."""

from treehammer.cric.cli import import_sites

COMMANDS = (import_sites,)
