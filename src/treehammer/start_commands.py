"""Commands to start with: ``treehammer config`` and ``treehammer demo``.

The demo prints the commands that a user would type, and runs them one after the other.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from treehammer import config, hctests
from treehammer.config import Settings, sqlite_url
from treehammer.errors import ExitCode, require_packages
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import PathType, prints_rows

PROGRAM = "treehammer"
DEMO_TEST = "ttree-read"
#: Command of a vertical, and the published results that the demo measures again with it.
REPRODUCE = "reproduce"
DEMO_RESULTS = ("zlib-over-lz4", "ttree-over-rntuple-zlib")
#: One undisturbed execution of all branches and of 2 % of them by each release, for the efficiency figure.
SOLO_OPTIONS = ("-P", "cache_mb=30", "-S", "repeats=1", "-S", "rounds=1", "-S", "passes=2")
#: All branches by both releases in turns: two jobs of four launches, one of them the control.
PAIRED_OPTIONS = ("-P", "cache_mb=30", "-P", "branches=1", "-S", "mode=paired", "-S", "rounds=3")


@click.group("config")
def config_group() -> None:
    """Show settings and their sources."""


@config_group.command("show")
@prints_rows(
    *(TableColumn(key, key) for key in ("setting", "value", "source")), *hidden_columns("meaning")
)
@click.pass_obj
def config_show(settings: config.Settings) -> list[dict[str, str]]:
    """Print every setting, its value and its source.

    Example: treehammer config show
    """
    return [
        {
            "setting": name,
            "value": config.format_setting(settings, name),
            "source": settings.sources[name],
            "meaning": meaning,
        }
        for name, meaning in config.SETTING_HELP.items()
    ]


def find_demo_test() -> str:
    """Find the shipped test: in the checkout's history at HEAD, else as installed."""
    shipped = Path(hctests.__file__).resolve().parent
    repository = shipped.parent
    if (repository / ".git").exists():
        return f"{'.' if repository == Path.cwd() else repository}@HEAD:{shipped.name}/{DEMO_TEST}"
    return DEMO_TEST


def _list_demo_commands(
    settings: Settings, published: Sequence[str], report: Path, tree: Path
) -> Iterator[tuple[str, ...]]:
    if published:
        yield REPRODUCE, *published
    # Results of a demo are not worth uploading.
    upload_options = ("--no-service",) if settings.service_url else ()
    test = find_demo_test()
    yield "submit", test, *SOLO_OPTIONS, "--name", "demo-solo", "--wait", *upload_options
    yield "submit", test, *PAIRED_OPTIONS, "--wait", *upload_options
    from treehammer.sql.read.reader import ResultsReader

    with ResultsReader.open(sqlite_url(report.parent.resolve())) as store:
        ids = {row.name: row.id for row in reversed(store.campaigns())}  # the newest of a name
    names = ("demo-solo", *(f"in-print-{name}" for name in published))
    options = (f"--campaign={ids[name]}" for name in names if name in ids)
    yield "report", "--campaign=last", *options, "-o", str(report)
    yield "export", str(tree)


@click.command("demo")
@click.option(
    "--output",
    type=PathType(file_okay=False),
    default=Path("demo-results"),
    show_default=True,
    help="Folder for the database, the pages and the TTree.",
)
@click.pass_context
def demo(context: click.Context, output: Path) -> ExitCode:
    """Measure two published results, and compare two ROOT releases; 150 s after its downloads.

    Fetches both releases and makes the datasets first, where they are missing; prints each command
    before it runs it.  First come compressions and formats, whose answers are in print, then two
    releases.  Exits with 1 when a measurement failed.

    Example: treehammer demo
    """
    require_packages("vl_convert", "pyarrow")
    settings: Settings = context.obj
    flags = required_flags(output, settings)
    report, tree = output / "report.html", output / "results.root"
    worst = ExitCode.DONE
    commands = context.find_root().command
    has_results = isinstance(commands, click.Group) and commands.get_command(context, REPRODUCE)
    for words in _list_demo_commands(settings, DEMO_RESULTS if has_results else (), report, tree):
        click.secho(f"\n+ {shlex.join([PROGRAM, *flags, *words])}", bold=True)
        code = commands.main([*flags, *words], standalone_mode=False)
        if words[0] == "submit":  # that a release is slower is a finding of the demo, no failure
            worst = max(worst, ExitCode(code or 0))
    typed = format_invocation(output, settings)
    scheme = "https" if settings.serve_certificate else "http"
    click.echo(
        f"\nOpen {report} in a browser, {tree} in ROOT (tree 'results').\n"
        f"Look further: {typed} status\n"
        f"The page on these results: {typed} serve --read-access public\n"
        f"  then open {scheme}://{settings.serve_host}:{settings.serve_port}/"
    )
    return worst


def format_invocation(output: Path, settings: Settings) -> str:
    """Format the command line prefix with which this shell shows the demo's results."""
    called, program = Path(sys.argv[0]), shutil.which(PROGRAM)
    is_found = called.name != PROGRAM or (program and called.exists() and called.samefile(program))
    return shlex.join([PROGRAM if is_found else str(called), *required_flags(output, settings)])


def required_flags(output: Path, settings: Settings) -> list[str]:
    """List the flags that commands on the demo's results need: its folder, and changed settings."""
    defaults = config.load_settings({"data_dir": output})
    needed = {
        "cache_dir": settings.cache_dir,
        "database": sqlite_url(output.resolve()),
        # One measurement at a time: neighbours would be measured too.
        "local_slots": 1,
    }
    words = ["--data-dir", str(output)]
    for name, value in needed.items():
        if getattr(defaults, name) != value:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words
