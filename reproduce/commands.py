"""Commands of published results by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Measure": {
        "reproduce": LazyCommand(
            "reproduce.cli:reproduce", "Measure published results again, and compare."
        )
    }
}
