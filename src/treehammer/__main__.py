"""``python -m treehammer``."""

from treehammer.cli import main

main()
