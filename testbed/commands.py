"""Commands of the testbed by section of ``treehammer --help``."""

from __future__ import annotations

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Build and debug a grid": {
        "testbed": LazyCommand("testbed.cli:testbed", "Run a small grid on this machine.")
    }
}
