"""Commands of published sites by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Share results": {
        "publish": LazyCommand(
            "publish.cli:publish", "Write the verdicts of a database as a site of static pages."
        )
    }
}
