"""The command line: assembles the verbs of the rooms and owns exit codes and messages."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from treehammer import config
from treehammer.errors import ExitCode, Interruption, TreehammerError
from treehammer.terminal import OutputColumn, output_options, print_rows
from treehammer.version import __version__

#: The verbs of the rooms: where each is found.
COMMAND_LOCATIONS = {
    "cancel": "submit.cli.campaign_commands:cancel",
    "collect": "submit.cli.campaign_commands:collect",
    "compare": "analysis.cli.compare_command:compare_command",
    "datasets": "submit.cli.datasets_verify_command:datasets",
    "db": "sql.cli.commands:db_group",
    "demo": "demo:demo",
    "export": "sql.cli.commands:export_command",
    "import": "sql.cli.commands:import_command",
    "purge": "submit.cli.purge_command:purge",
    "render": "submit.cli.submit_render_commands:render",
    "report": "web.cli.report_command:report_command",
    "resume": "submit.cli.campaign_commands:resume",
    "serve": "web.cli.serve_command:serve_command",
    "sites": "submit.cli.sites_commands:sites",
    "status": "submit.cli.campaign_commands:status",
    "submit": "submit.cli.submit_render_commands:submit",
    "summary": "analysis.cli.summary_command:summary_command",
    "testbed": "testbed.cli.testbed_commands:testbed",
    "tests": "hctests.cli.tests:tests",
    "token": "web.cli.token_commands:token",
    "worker": "collectors.cli.worker:worker",
}


class LazyCommandGroup(click.Group):
    """Has the verbs of the rooms, and imports only the one that is used: the others take a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all verbs, sorted."""
        return sorted({*super().list_commands(ctx), *COMMAND_LOCATIONS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb of that name, None when there is none."""
        if cmd_name not in COMMAND_LOCATIONS:
            return super().get_command(ctx, cmd_name)
        module, _, name = COMMAND_LOCATIONS[cmd_name].partition(":")
        verb: click.Command = getattr(import_module(f"treehammer.{module}"), name)
        return verb


@click.group(
    cls=LazyCommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="treehammer")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="Configuration file [default: treehammer.toml here].",
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Where results and the queue are kept."
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Where ROOT releases, clones and datasets are cached.",
)
@click.option("--database", help="SQLAlchemy URL of the results database.")
@click.option(
    "--sites-file", type=click.Path(path_type=Path), help="Sites beside this machine (sites.toml)."
)
@click.option("--slots", type=int, help="Jobs that this machine runs at once.")
@click.pass_context
def cli(context: click.Context, /, config_file: Path | None, **flags: Any) -> None:
    """Identical ROOT TTree read tests at many grid sites, compared honestly.

    Start with: treehammer demo
    """
    context.obj = config.load_settings(flags, config=config_file)


@cli.group("config")
def config_group() -> None:
    """Settings and where they come from."""


@config_group.command("show")
@output_options
@click.pass_obj
def config_show(settings: config.Settings, form: str) -> None:
    """Print every setting, its value and its origin.

    Example: treehammer config show
    """
    rows = [
        {
            "setting": name,
            "value": config.format_setting(settings, name),
            "origin": settings.origins[name],
            "meaning": meaning,
        }
        for name, meaning in config.SETTING_HELP.items()
    ]
    print_rows(
        rows,
        [
            OutputColumn("setting", "setting"),
            OutputColumn("value", "value"),
            OutputColumn("origin", "from"),
        ],
        form=form,
    )


def _replace_unencodable_output() -> None:
    """Show '?' for a character that the output's encoding lacks, rather than fail on it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Entry point: runs the command and leaves with the documented exit code."""
    _replace_unencodable_output()
    try:
        code = cli.main(standalone_mode=False)
    except TreehammerError as error:
        click.echo(f"treehammer: {error}", err=True)
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt) as error:
        told = error.__cause__ if isinstance(error, click.Abort) else error
        left = f"; {told}" if isinstance(told, Interruption) else ""
        click.echo(f"treehammer: interrupted{left}", err=True)
        code = ExitCode.INTERRUPTED
    sys.exit(int(code or 0))
