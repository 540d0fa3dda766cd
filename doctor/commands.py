"""Command of the checks by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Get started": {
        "doctor": LazyCommand("doctor.cli:doctor", "Check this installation; name remedies.")
    }
}
