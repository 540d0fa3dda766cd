"""The command line: assembles the commands of all packages; maps errors to exit codes."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from treehammer import config
from treehammer.errors import (
    ConfigError,
    ExitCode,
    Interruption,
    TreehammerError,
    explain_missing_extra,
    prepare_for_terminal,
    remember_invocation,
    suggest_word,
)
from treehammer.extensions import ExtensionGroup, list_extensions, load_extension
from treehammer.lazy_command import LazyCommand
from treehammer.version import __version__
from treehammer.verticals import import_parts

#: Commands by section of ``treehammer --help``, in the order of a user's work; verticals add theirs.
SECTIONS: dict[str, dict[str, LazyCommand]] = {
    "Get started": {
        "demo": LazyCommand(
            "start_commands:demo", "Measure two published results, and compare two ROOT releases."
        ),
        "tests": LazyCommand("submit.cli.check_commands:tests", "List, show and check tests."),
        "datasets": LazyCommand(
            "submit.cli.datasets_commands:datasets", "Make, place and verify datasets."
        ),
        "sites": LazyCommand(
            "submit.cli.sites_commands:sites", "List, check and import sites; show their states."
        ),
        "releases": LazyCommand(
            "collectors.cli:releases_command",
            "List ROOT releases that can be installed, and cached ones.",
        ),
        "config": LazyCommand("start_commands:config_group", "Show settings and their sources."),
    },
    "Measure": {
        "try": LazyCommand(
            "submit.cli.comparison_commands:try_command",
            "Compare a changed test with its last commit, in turns.",
        ),
        "read": LazyCommand(
            "submit.cli.read_command:read_command",
            "Measure how fast ROOT reads one file, and what limits it.",
        ),
        "submit": LazyCommand(
            "submit.cli.submit_commands:submit", "Plan a test, prepare its jobs and submit them."
        ),
        "render": LazyCommand(
            "submit.cli.submit_commands:render", "Show the jobs of a test without submitting."
        ),
        "status": LazyCommand(
            "submit.cli.campaign_commands:status", "Show all campaigns, or the progress of one."
        ),
        "resume": LazyCommand(
            "submit.cli.campaign_commands:resume", "Release held jobs and requeue lost ones."
        ),
        "cancel": LazyCommand(
            "submit.cli.campaign_commands:cancel",
            "Cancel the jobs of a campaign; results are kept.",
        ),
        "collect": LazyCommand(
            "submit.cli.campaign_commands:collect", "Store the results of a campaign's jobs."
        ),
        "purge": LazyCommand(
            "submit.cli.campaign_commands:purge",
            "Remove working folders and logs of finished campaigns.",
        ),
        "count": LazyCommand(
            "submit.cli.comparison_commands:count",
            "Count the instructions of a test's read with two ROOT releases.",
        ),
    },
    "Read results": {
        "compare": LazyCommand(
            "analysis.cli.result_commands:compare_command",
            "Compare two ROOT releases or variants.",
            reads_results=True,
        ),
        "summary": LazyCommand(
            "analysis.cli.result_commands:summary_command",
            "Show mean values of a campaign by group.",
            reads_results=True,
        ),
        "explain": LazyCommand(
            "analysis.cli.result_commands:explain_command",
            "Explain a low CPU efficiency.",
            reads_results=True,
        ),
        "report": LazyCommand(
            "web.cli:report_command", "Write a campaign as one HTML page.", reads_results=True
        ),
        "export": LazyCommand(
            "sql.cli.transfer_commands:export_command",
            "Write measurements to a ROOT, CSV or Parquet file.",
            reads_results=True,
        ),
        "import": LazyCommand(
            "sql.cli.transfer_commands:import_command",
            "Import measurements from another installation or tool.",
        ),
        "db": LazyCommand(
            "sql.cli.database_commands:db_group", "Inspect, upgrade and copy the results database."
        ),
    },
    "Run continuously": {},
    "Share results": {
        "serve": LazyCommand("web.cli:serve_command", "Run the results service with its pages."),
        "token": LazyCommand("web.cli:token", "Manage access keys of the results service."),
    },
    "Build and debug a grid": {
        "worker": LazyCommand("collectors.cli:worker", "Run the job side by hand.")
    },
}
for module in import_parts("commands"):
    for title, commands in module.COMMANDS.items():
        SECTIONS[title].update(commands)
_PASSWORD = re.compile(r"(://[^/:@]*:|[?&]\w*password=)[^@&]+")  # in a database URL
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


class LazyCommandGroup(click.Group):
    """Imports only the command that is used; importing all of them takes a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands, sorted."""
        return sorted({**list_extensions(ExtensionGroup.COMMANDS), **COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name, shipped or of another package; None without one."""
        if command := COMMANDS.get(cmd_name):
            return _refuse_empty_values(command.load())
        extension: click.Command | None = load_extension(ExtensionGroup.COMMANDS, cmd_name)
        return extension

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the nearest name for a mistyped one."""
        name = args[0]
        is_new = name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing
        if is_new and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}. {suggest_word(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by section, without importing them."""
        sections = {
            title: {name: command.summary for name, command in commands.items()}
            for title, commands in SECTIONS.items()
        }
        packages = list_extensions(ExtensionGroup.COMMANDS)
        sections["Other packages"] = {
            name: f"Command of the package {package}."
            for name, package in sorted(packages.items())
            if name not in COMMANDS
        }
        width = max(len(name) for summaries in sections.values() for name in summaries)
        for title, summaries in sections.items():
            if summaries:
                with formatter.section(title):
                    formatter.write_dl(
                        [(name.ljust(width), summary) for name, summary in summaries.items()]
                    )


@click.group(
    cls=LazyCommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="treehammer")
@click.option(
    "--config",
    "config_file",
    type=click.Path(),
    help="Configuration file [default: ./treehammer.toml].",
)
@click.option("--data-dir", type=click.Path(), help="Folder for results and the job queue.")
@click.option(
    "--cache-dir",
    type=click.Path(),
    help="Folder for cached ROOT releases, clones and datasets.",
)
@click.option("--database", help="SQLAlchemy URL of the results database.")
@click.option(
    "--sites-file",
    type=click.Path(),
    help="Sites in addition to this machine (sites.toml).",
)
@click.option("--local-slots", type=int, help="Jobs that run on this machine at once.")
@click.pass_context
def cli(context: click.Context, /, config_file: str | None, **flags: Any) -> None:
    """Identical ROOT TTree read tests at many grid sites, compared honestly.

    Start with: treehammer demo
    """
    remember_invocation(_repeat_options(context), COMMANDS)
    try:
        context.obj = config.load_settings(flags, config=config_file)
    except ConfigError as error:
        if context.invoked_subcommand != "check":
            raise
        # Monitoring knows other exit codes: that of a wrong setting would be critical.
        from treehammer.text_formatting import make_single_line

        click.echo(f"TREEHAMMER UNKNOWN - {make_single_line(str(error)).replace('|', '/')}")
        context.exit(3)


def _refuse_empty_values(command: click.Command) -> click.Command:
    """Refuse empty texts of options and optional arguments, as of variables that are not set."""
    from treehammer.terminal import TEXT

    for parameter in command.params:
        is_optional = isinstance(parameter, click.Option) or not parameter.required
        if is_optional and parameter.nargs == 1 and parameter.type is click.STRING:
            parameter.type = TEXT
    for subcommand in getattr(command, "commands", {}).values():
        _refuse_empty_values(subcommand)
    return command


def _repeat_options(context: click.Context) -> Iterator[str]:
    """Yield the global options that were typed, with the password of a database masked."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield from (parameter.opts[0], _PASSWORD.sub(r"\1***", str(context.params[name])))


def main() -> None:
    """Run the command and exit with the documented exit code."""
    _prepare_output()
    message = ""
    try:
        with explain_missing_extra():
            code = cli.main(standalone_mode=False)
    except TreehammerError as error:
        message, code = str(error), error.exit_code
    except click.ClickException as error:
        error.show()
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt) as error:
        cause = error.__cause__  # of Click's error
        state = f"; {prepare_for_terminal(str(cause))}" if isinstance(cause, Interruption) else ""
        message, code = f"interrupted{state}", ExitCode.INTERRUPTED
    except UnicodeEncodeError as error:  # a word of the command that the database cannot hold
        message, code = f"{error.object[:100]!r} is not UTF-8 text", ExitCode.USAGE
    except SystemExit:  # Click's or Rich's, where the reader of the output has gone
        if "_TREEHAMMER_COMPLETE" in os.environ:  # Click's after completion
            raise
        code = ExitCode.OUTPUT_CLOSED
    except OSError as error:
        # A full or read-only disk, or a folder that is missing, can stop any command.
        hint = "'treehammer config show' lists the folders that it uses."
        message = f"{_name_place(error)}: {error.strerror}\n  {hint}"
        code = ExitCode.INFRASTRUCTURE
    except MemoryError:
        message = "not enough memory\n  Free some, or raise ulimit -v."
        code = ExitCode.INFRASTRUCTURE
    if message:
        click.echo(f"treehammer: {message}", err=True)
    sys.exit(code)


def _prepare_output() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Unbuffered (PYTHONUNBUFFERED), what a nearly full disk does not take would be lost unnoticed.
        if isinstance(sys.stdout.buffer, io.RawIOBase):
            file, encoding = sys.stdout.fileno(), sys.stdout.encoding
            sys.stdout = open(file, "w", 1, encoding, closefd=False)  # noqa: SIM115
        # '?' stands for characters that the output's encoding lacks, instead of failing.
        sys.stdout.reconfigure(errors="replace")


def _name_place(error: OSError) -> str:
    """Name the file of an error, or standard output that takes nothing more: nothing is written then."""
    if error.filename:
        return str(error.filename)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python exits with 120 after a retry
    return "output or open file"
