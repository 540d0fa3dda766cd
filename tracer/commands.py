"""Command of the recorder by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Measure": {
        "run": LazyCommand(
            "tracer.cli:run_command", "Measure any command, or compare two of them, in turns."
        ),
    },
}
