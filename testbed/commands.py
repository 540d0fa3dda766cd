"""Commands of the testbed by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

_TESTBED = LazyCommand("testbed.cli:testbed", "Run a small grid on this machine.")
COMMANDS = {"Build and debug a grid": {"testbed": _TESTBED}}
