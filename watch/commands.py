"""Commands of the watch by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Measure": {
        "bisect": LazyCommand(
            "watch.cli.bisect_command:bisect", "Find the build that changed a metric."
        ),
    },
    "Run continuously": {
        "patrol": LazyCommand(
            "watch.cli.patrol_commands:patrol",
            "Run tests by themselves: by time, commit, tag and ROOT release.",
        ),
        "changes": LazyCommand(
            "watch.cli.watch_commands:changes_command",
            "List what became slower or faster, and since when.",
            reads_results=True,
        ),
        "digest": LazyCommand(
            "watch.cli.watch_commands:digest_command",
            "Print the changes of a week.",
            reads_results=True,
        ),
        "check": LazyCommand(
            "watch.cli.watch_commands:check_command",
            "Print the state of a site, release or the service, for Nagios.",
            reads_results=True,
        ),
        "notify": LazyCommand(
            "watch.cli.watch_commands:notify_command",
            "Record changed states and regressions as events.",
            reads_results=True,
            names_waiting=False,
        ),
    },
}
