"""``treehammer config``: the settings and their sources."""

from __future__ import annotations

import click

from treehammer import config
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows


@click.group("config")
def config_group() -> None:
    """Show settings and their sources."""


@config_group.command("show")
@output_options
@click.pass_obj
def config_show(settings: config.Settings, form: str) -> None:
    """Print every setting, its value and its source.

    Example: treehammer config show
    """
    rows = [
        {
            "setting": name,
            "value": config.format_setting(settings, name),
            "source": settings.sources[name],
            "meaning": meaning,
        }
        for name, meaning in config.SETTING_HELP.items()
    ]
    columns = [TableColumn(key, key) for key in ("setting", "value", "source")]
    print_rows(rows, columns, form=form)
