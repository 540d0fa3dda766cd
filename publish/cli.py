"""``treehammer publish``: the verdicts of a database as a site of static pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDoError, require_packages
from treehammer.tables import TableColumn
from treehammer.terminal import (
    CAMPAIGN,
    CommandOutput,
    PathType,
    on_interrupt,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import pluralize

if TYPE_CHECKING:
    from treehammer.publish.site_check import PublishedSite

_COLUMNS = (
    TableColumn("kind", "page"),
    TableColumn("pages", "pages", is_number=True),
    TableColumn("largest", "largest, kB", lambda size: f"{size / 1000:.1f}", is_number=True),
)
_PROBLEM_COLUMNS = (TableColumn("file", "file"), TableColumn("problem", "problem", is_long=True))


@click.command("publish")
@click.argument("folder", type=PathType(file_okay=False))
@click.option(
    "--campaign",
    "campaigns",
    multiple=True,
    type=CAMPAIGN,
    metavar="ID|last",
    help="Publish this campaign, and comparisons of such campaigns alone [default: all].",
)
@click.option("--hosts", is_flag=True, help="Publish the names of hosts, too.")
@click.option("--people", is_flag=True, help="Publish the names of people, too.")
@click.option(
    "--address", default="", metavar="URL", help="Address of the site, for links of its feed."
)
@click.option(
    "--check", is_flag=True, help="Write nothing; check the sizes, links and names of a site."
)
@prints_rows(*_COLUMNS, keys="and with --check file, problem")
@click.pass_obj
def publish(settings: Settings, /, folder: Path, check: bool, **options: Any) -> CommandOutput:
    """Write the verdicts of a database as static pages into FOLDER.

    Any web server serves them, and they need no JavaScript. The list site.json names all files.
    Hosts and people are left out unless asked for. The exit code of --check is 1 for a problem.

    \b
    Example: treehammer publish site/ --address https://example.org/root/
             treehammer publish site/ --campaign 6.40.00 --campaign 6.40.02
             treehammer publish site/ --check
    """
    require_packages("prometheus_client")
    from treehammer.publish.publication import PublicationRequest, publish_site
    from treehammer.publish.site_check import PublishedSite

    if check:
        return _check(settings, PublishedSite(folder))
    with on_interrupt(f"{folder} is as it was"):
        publication = publish_site(settings, PublicationRequest(folder, **options), progress_bar)
    site = publication.site
    left_out = [name for name in ("hosts", "people") if not site.manifest[f"has_{name}"]]
    summary = (
        f"{folder}: {pluralize(len(publication.pages), 'page')} of "
        f"{pluralize(publication.campaigns, 'campaign')}, {site.size / 1e6:.1f} MB"
    )
    if left_out:
        summary += f"; {' and '.join(left_out)} left out"
    below = [summary, *(f"{problem.file} {problem.problem}" for problem in publication.problems)]
    return CommandOutput(site.measure_pages(), below=below)


def _check(settings: Settings, site: PublishedSite) -> CommandOutput:
    """Check a site; names of the database are searched where there is one."""
    hosts, people, remark = _load_hidden_names(settings, site)
    problems = site.find_problems(hosts, people)
    remarks = [remark] if remark else []
    if problems:
        code = ExitCode.REGRESSION
        return CommandOutput(problems, _PROBLEM_COLUMNS, remarks=remarks, exit_code=code)
    below = [f"{site.folder}: {pluralize(len(site.files), 'file')} without a problem"]
    return CommandOutput(site.measure_pages(), below=below, remarks=remarks)


def _load_hidden_names(settings: Settings, site: PublishedSite) -> tuple[list[str], list[str], str]:
    """Load the names that a site must not contain, and a remark if they are unknown."""
    from treehammer.publish.public_names import PublicNames, load_hosts, load_people
    from treehammer.sql.engine.database_engine import read_transaction
    from treehammer.sql.engine.database_setup import opened_engine

    manifest = site.manifest
    try:
        with (
            opened_engine(settings.database, create=False) as engine,
            read_transaction(engine) as connection,
        ):
            hosts = [] if manifest["has_hosts"] else [*PublicNames(load_hosts(connection)).hosts]
            people = [] if manifest["has_people"] else sorted(load_people(connection))
    except NothingToDoError:
        return [], [], "no database: names of hosts and people were not searched"
    return hosts, people, ""
