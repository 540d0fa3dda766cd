"""Commands of the watch in ``treehammer sites``."""

from treehammer.submit.cli.command_options import collect_before
from treehammer.watch.cli.site_status_commands import (
    downtimes,
    end_override,
    evaluate,
    override,
    show_rules,
    status,
)

COMMANDS = (status, collect_before(evaluate), show_rules, override, end_override, downtimes)
