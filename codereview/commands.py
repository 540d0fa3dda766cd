"""Commands of code reviews by section of ``treehammer --help``."""

from treehammer.lazy_command import LazyCommand

COMMANDS = {
    "Share results": {
        "review": LazyCommand(
            "codereview.cli:review",
            "Write a campaign's verdict into the pull request.",
            reads_results=True,
        )
    }
}
