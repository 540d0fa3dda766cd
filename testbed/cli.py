"""``treehammer testbed``: a grid in a box."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.collectors.job_spec import MAX_BANDWIDTH_MBIT, MAX_LATENCY_MS
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.tables import TableColumn
from treehammer.terminal import (
    CommandOutput,
    NumberRange,
    PathType,
    on_interrupt,
    prints_rows,
    progress_bar,
)
from treehammer.testbed.workspace import (
    DEFAULT_RELEASES,
    MAX_SITES,
    MAX_SLOTS,
    Workspace,
    define_workspace,
)
from treehammer.text_formatting import parse_duration, pluralize, split_list

if TYPE_CHECKING:
    from treehammer.testbed.lifecycle import WorkspaceState

DEFAULT_SITES = 4
_DIRECTIVE_PATTERN = re.compile(r"[a-z]+\.[A-Za-z_]+")
_CHANNEL_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,19}=[a-z0-9-]+")

STATUS_COLUMNS = (
    TableColumn("daemon", "daemon"),
    TableColumn("pid", "pid", is_number=True),
    TableColumn("state", "state"),
    TableColumn("since", "since (UTC)"),
    TableColumn("ports", "ports", lambda ports: ", ".join(map(str, ports)) or "–"),
)

testbed_name_option = click.option(
    "--name", default="testbed", show_default=True, help="Name of the testbed; several can run."
)


@click.group()
def testbed() -> None:
    """Run a real grid on this machine, with HTCondor and XRootD.

    Example: treehammer testbed up, and later: treehammer testbed down
    """


@testbed.command()
@testbed_name_option
@click.option(
    "--sites",
    type=click.IntRange(1, MAX_SITES),
    default=DEFAULT_SITES,
    show_default=True,
    help="Number of sites; the last one is distant.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, MAX_SLOTS),
    default=1,
    show_default=True,
    help="Jobs that each site runs at once.",
)
@click.option("--second-pool", is_flag=True, help="Add an HTCondor pool for the grid universe.")
@click.option(
    "--releases",
    metavar="LIST",
    default=",".join(DEFAULT_RELEASES),
    show_default=True,
    help="ROOT releases that jobs find on CVMFS.",
)
@click.option(
    "--with-rucio", "rucio", is_flag=True, help="Add Rucio: each site's storage becomes an RSE."
)
@click.option(
    "--with-database",
    "database",
    is_flag=True,
    help="Add a PostgreSQL server with a results database, over TLS.",
)
@click.option(
    "--secure-sites",
    type=click.IntRange(0, MAX_SITES),
    default=0,
    help="The first so many sites have only doors with TLS that require tokens or x509 proxies.",
)
@click.option(
    "--with-arc", "arc", is_flag=True, help="Add an ARC computing element with a site, as root."
)
@click.option(
    "--xrootd-channel",
    "channels",
    multiple=True,
    metavar="DOOR=SUITE",
    help="Add a door to each site, served by XRootD of another suite of Debian, such as testing=sid; "
    "repeatable.",
)
@click.option("--keep", is_flag=True, help="Keep a testbed that fails to start, for inspection.")
@click.option(
    "--owner",
    type=click.IntRange(min=1),
    metavar="PID",
    help="End the testbed with this process, however that dies  [default: it stays until 'down']",
)
@click.pass_obj
def up(
    settings: Settings,
    /,
    name: str,
    sites: int,
    releases: str,
    channels: tuple[str, ...],
    keep: bool,
    owner: int | None,
    **options: Any,
) -> None:
    """Start a testbed and print its sites file.

    The first start downloads 100 MB of Debian packages and unpacks them into the cache; nothing is
    installed. Leftovers of a crash are removed first. Rucio adds 120 MB of downloads, a database
    35 MB, which Rucio includes, and each further suite of XRootD 25 MB.

    \b
    Example: treehammer testbed up --sites 6
             treehammer testbed up --xrootd-channel stable=bookworm --xrootd-channel testing=sid
    """
    from treehammer.testbed import lifecycle
    from treehammer.testbed.components import secure_storage, site_list

    box = define_workspace(
        name,
        sites,
        settings,
        releases=tuple(dict.fromkeys(split_list(releases))),
        channels=parse_channels(channels),
        **options,
    )
    began = time.monotonic()
    with on_interrupt("treehammer testbed down removes it" if keep else "nothing of it is left"):
        changed = lifecycle.bring_up(
            box, site_list.build_components(box), _print_progress, keep=keep, owner=owner
        )
    duration = f" after {time.monotonic() - began:.1f} s" if changed else " already"
    click.echo(f"testbed {name} is up{duration}, with {pluralize(sites, 'site')}")
    click.echo(f"sites file: {site_list.sites_file_path(box)}")
    for account, config in site_list.rucio_client_configs(box).items():
        click.echo(f"Rucio as {account}: export RUCIO_CONFIG={config}")
    if url := site_list.read_database_url(box):
        click.echo(f"results database: export TREEHAMMER_DATABASE={shlex.quote(url)}")
    if options["secure_sites"]:
        folder = secure_storage.certificate_folder(box)
        click.echo(f"authorities: export X509_CERT_DIR={shlex.quote(str(folder))}")
        proxy = secure_storage.user_proxy(box, secure_storage.MEMBER)
        click.echo(f"proxy of a VO's member: export X509_USER_PROXY={shlex.quote(str(proxy))}")
    click.echo(f"next: treehammer --sites-file {site_list.sites_file_path(box)} sites check")


@testbed.command()
@click.argument("file", type=PathType(dir_okay=False, writable=True))
@testbed_name_option
@click.option(
    "--scope",
    help="Permitted operations; by default storage.read:/treehammer, or what Rucio requires.",
)
@click.option(
    "--lifetime", metavar="TIME", default="24h", show_default=True, help="Validity from now on."
)
@click.option(
    "--rucio", "account", metavar="ACCOUNT", help="Write a token of a Rucio account instead."
)
@click.pass_obj
def token(
    settings: Settings, file: Path, name: str, scope: str | None, lifetime: str, account: str | None
) -> None:
    """Write a token for the doors of secure sites, or for Rucio, to FILE.

    \b
    Example: treehammer testbed token /tmp/storage-token
             treehammer submit ttree-read --token-file /tmp/storage-token
             treehammer testbed token /tmp/rucio-token --rucio hammer --lifetime 1h
    """
    from treehammer.testbed.components import rucio_server, secure_storage

    box, _ = _load_testbed(name, settings)
    lifetime_s = parse_duration(lifetime, "--lifetime")
    scope = scope or (rucio_server.TOKEN_SCOPE if account else secure_storage.READ_SCOPE)
    if account:
        issuer = rucio_server.load_rucio_issuer(box)
        rucio_server.write_rucio_token(issuer, file, account, lifetime_s, scope)
    else:
        secure_storage.load_issuer(box).write_token(file, scope, lifetime_s)
    click.echo(f"token for {scope}: export BEARER_TOKEN_FILE={shlex.quote(str(file.absolute()))}")


@testbed.command()
@click.argument("site")
@click.argument("door")
@click.argument("suite")
@click.option(
    "--newest",
    is_flag=True,
    help="Ask the suite's repository for a release that is not unpacked yet.",
)
@testbed_name_option
@click.pass_obj
def upgrade(settings: Settings, site: str, door: str, suite: str, newest: bool, name: str) -> None:
    """Restart the server of a site's DOOR with XRootD of another SUITE of Debian.

    Jobs continue, and the next measurement records the new version. DOOR is root, cache, origin (the
    cache's alone), or a door of --xrootd-channel. SUITE is also path:FOLDER, an installation with
    bin/xrootd. An older suite downgrades.

    \b
    Example: treehammer testbed upgrade SITE_A cache sid
             treehammer testbed upgrade SITE_A cache sid --newest
             treehammer testbed upgrade SITE_A origin path:/opt/xrootd-6.3
    """
    from treehammer.testbed.faults import upgrade_server

    box = _load_running_testbed(name, settings)
    before, after = upgrade_server(box, site, door, suite, _print_progress, newest=newest)
    click.echo(f"{site}, door {door}: {before or 'no answer'} -> {after}")


@testbed.command()
@click.argument("site")
@click.argument("door")
@click.option("--rtt", metavar="TIME", help="Round trip such as 80ms.")
@click.option(
    "--rate",
    "rate_mbit",
    type=NumberRange(0, MAX_BANDWIDTH_MBIT),
    metavar="MBIT",
    help="Megabits per second in each direction; 0 for no limit.",
)
@testbed_name_option
@click.pass_obj
def distance(
    settings: Settings, site: str, door: str, rtt: str | None, rate_mbit: float | None, name: str
) -> None:
    """Set how far the data of a site's DOOR are, or print it.

    DOOR is one of a distant site, or cache or origin of the first site: the link is then between the
    cache and its origin. Connections continue. Tests set it for a job by the axes latency_ms and
    bandwidth_mbit.

    Example: treehammer testbed distance SITE_A cache --rtt 80ms --rate 1000
    """
    from treehammer.testbed.faults import set_distance

    box = _load_running_testbed(name, settings)
    rtt_ms = None if rtt is None else _parse_rtt(rtt)
    before, after, measured_ms = set_distance(box, site, door, rtt_ms, rate_mbit)
    change = f"{before} -> {after}" if before != after else f"{after}"
    measured = "no answer" if measured_ms is None else f"{measured_ms:.1f} ms"
    click.echo(f"{site}, door {door}: {change}; measured round trip: {measured}")


def _parse_rtt(text: str) -> float:
    """Parse a round trip such as ``80ms`` or ``0.2 s`` to milliseconds.

    Raises:
        ConfigError: it is none, or too long for a link.
    """
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*(ms|s)", text.strip())
    rtt_ms = float(match[1]) * (1000 if match[2] == "s" else 1) if match else -1.0
    if not 0 <= rtt_ms <= MAX_LATENCY_MS:
        raise ConfigError(
            f"{text!r} is not a round trip from 0ms to {MAX_LATENCY_MS}ms",
            where="--rtt",
            hint="Write it like 80ms or 0.2s.",
        )
    return rtt_ms


@testbed.command()
@click.argument("site")
@click.argument("door")
@testbed_name_option
@click.pass_obj
def restart(settings: Settings, site: str, door: str, name: str) -> None:
    """Restart the server of a site's DOOR, e.g. after a change of its xrootd.cfg.

    Jobs continue; their clients reconnect or fail, as at a real site. Doors of one server restart
    together; pinned and federation restart the redirector.

    Example: treehammer testbed restart SITE_D root
    """
    from treehammer.testbed.faults import restart_server

    box = _load_running_testbed(name, settings)
    restart_server(box, site, door, _print_progress)
    click.echo(f"{site}: the server of door {door} is back")


@testbed.command()
@click.argument("site")
@click.argument("door")
@click.argument("changes", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--reset", is_flag=True, help="Return to the settings that the testbed began with.")
@testbed_name_option
@click.pass_obj
def configure(
    settings: Settings, site: str, door: str, changes: tuple[str, ...], reset: bool, name: str
) -> None:
    """Restart the server of a site's DOOR with other settings.

    NAME is a directive of XRootD's configuration; the VALUE replaces all lines of it. Jobs continue.
    A server that does not start returns to its settings.

    \b
    Example: treehammer testbed configure SITE_A cache pfc.blocksize=1m
             treehammer testbed configure SITE_A cache --reset
    """
    from treehammer.testbed.faults import configure_server

    if bool(changes) == reset:
        raise ConfigError(
            "name either settings or --reset",
            where="testbed configure",
            hint="Such as pfc.blocksize=1m.",
        )
    directives = parse_directives(changes)
    box = _load_running_testbed(name, settings)
    changed = configure_server(box, site, door, directives, _print_progress)
    for directive, (before, after) in changed.items():
        click.echo(f"{site}, door {door}: {directive} {before or '–'} -> {after or '–'}")


@testbed.command()
@testbed_name_option
@click.pass_obj
def down(settings: Settings, name: str) -> None:
    """Stop a testbed and remove its processes, files and ports.

    Example: treehammer testbed down
    """
    from treehammer.testbed import lifecycle

    box, _ = _load_testbed(name, settings)
    with on_interrupt("repeat the command to stop the rest"):
        if not lifecycle.take_down(box, _print_progress):
            raise NothingToDoError(f"there is no testbed {name!r}")
    click.echo(f"testbed {name} is gone")


@testbed.command()
@testbed_name_option
@prints_rows(*STATUS_COLUMNS)
@click.pass_obj
def status(settings: Settings, name: str) -> CommandOutput:
    """List the daemons of a testbed.

    Example: treehammer testbed status
    """
    from treehammer.testbed.lifecycle import list_daemons

    _, state = _load_testbed(name, settings)
    if state is None:
        raise _make_missing_error(name)
    advice = f"testbed {name} is down; treehammer testbed up starts it"
    return CommandOutput(list_daemons(state), remarks=[] if state.ready else [advice])


@testbed.command()
@testbed_name_option
@click.argument("daemon", required=False)
@click.option("--lines", default=20, show_default=True, help="How many of each.")
@click.pass_obj
def logs(settings: Settings, name: str, daemon: str | None, lines: int) -> None:
    """Print the ends of a testbed's logs, or of one log.

    Example: treehammer testbed logs condor-SchedLog --lines 50
    """
    from treehammer.testbed import lifecycle

    box, _ = _load_testbed(name, settings)
    paths = lifecycle.find_logs(box)
    if not paths:
        raise NothingToDoError(f"testbed {name!r} has no logs")
    if daemon is not None and daemon not in paths:
        raise ConfigError(
            f"there is no log {daemon!r}",
            where=f"testbed {name}",
            hint=f"{suggest_word(daemon, paths)}Known: {', '.join(paths)}.",
        )
    for log in [daemon] if daemon else paths:
        click.secho(f"== {log}: {paths[log]}", bold=True)
        for line in lifecycle.read_last_lines(paths[log], lines):
            click.echo(line)


@testbed.command()
@testbed_name_option
@click.argument("datasets", nargs=-1, required=True, metavar="DATASET...")
@click.option("--site", "sites", multiple=True, help="Only at this site; repeatable.")
@click.pass_obj
def put(settings: Settings, name: str, datasets: tuple[str, ...], sites: tuple[str, ...]) -> None:
    """Copy datasets of this machine to the storages of a testbed's sites.

    This replaces Rucio: files are copied to the storages' disks and read back to compare size and
    adler32. Correct replicas stay.

    Example: treehammer testbed put reference-small
    """
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.testbed.components import dataset_placement

    box = _load_running_testbed(name, settings)
    catalogue = FolderCatalogue(settings.datasets_dir)
    for dataset in datasets:
        with on_interrupt("completely copied files stay; repeat the command"):
            copied = dataset_placement.place_dataset(dataset, catalogue, box, sites, progress_bar)
        count = pluralize(sum(copied.values()), "file")
        click.echo(f"{dataset}: {count} copied, verified at {', '.join(copied)}")


def parse_channels(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse doors and suites from DOOR=SUITE.

    Raises:
        ConfigError: one is malformed, or a door is taken.
    """
    from treehammer.testbed.components.xrootd_storage import RESERVED_DOORS

    channels: dict[str, str] = {}
    for text in texts:
        door, _, suite = text.partition("=")
        if not _CHANNEL_PATTERN.fullmatch(text) or door in (*RESERVED_DOORS, *channels):
            raise ConfigError(
                f"{text!r} is not DOOR=SUITE with a new door",
                where="--xrootd-channel",
                hint=f"Such as testing=sid; taken: {', '.join([*RESERVED_DOORS, *channels])}.",
            )
        channels[door] = suite
    return tuple(channels.items())


def parse_directives(texts: Sequence[str]) -> dict[str, str]:
    """Parse directives of a server and their values from NAME=VALUE.

    Raises:
        ConfigError: one is malformed, or named twice.
    """
    directives: dict[str, str] = {}
    for text in texts:
        directive, _, value = (part.strip() for part in text.partition("="))
        if not _DIRECTIVE_PATTERN.fullmatch(directive) or not value or not value.isprintable():
            raise ConfigError(
                f"{text!r} is not NAME=VALUE", where="NAME=VALUE", hint="Such as pfc.blocksize=1m."
            )
        if directive in directives:
            raise ConfigError(f"{directive} is given twice", where="NAME=VALUE")
        directives[directive] = value
    return directives


def _print_progress(text: str) -> None:
    click.echo(f"testbed: {text}", err=True)


def _load_testbed(name: str, settings: Settings) -> tuple[Workspace, WorkspaceState | None]:
    """Load a testbed with its saved state, or with defaults if the state is unreadable."""
    from treehammer.testbed.lifecycle import read_state

    box = define_workspace(name, DEFAULT_SITES, settings)
    state = read_state(box.folder)
    if state is not None:
        box = replace(box, **state.options)
    return box, state


def _load_running_testbed(name: str, settings: Settings) -> Workspace:
    box, state = _load_testbed(name, settings)
    if state is None or not state.ready:
        raise _make_missing_error(name)
    return box


def _make_missing_error(name: str) -> NothingToDoError:
    return NothingToDoError(f"there is no testbed {name!r}", hint="Start it: treehammer testbed up")
