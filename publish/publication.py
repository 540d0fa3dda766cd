"""Publication of a database: copy, pages, check, and replacement of the folder's earlier site.

The copy holds chosen campaigns, without keys, people and hosts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.config import Settings
from treehammer.errors import ConfigError, StoreError
from treehammer.program_output import explain_write_errors, replace_file
from treehammer.publish.page_reader import open_pages
from treehammer.publish.public_names import PublicNames, load_hosts, load_people
from treehammer.publish.site_check import PublishedSite, SiteProblem
from treehammer.publish.site_writer import MANIFEST, SitePage, SiteWriter
from treehammer.setting_parsers import split_http_url
from treehammer.sql.core import schema
from treehammer.sql.core.column_types import DocumentText, StoredText
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.sql.core.schema import release_check
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.engine.database_setup import opened_engine
from treehammer.sql.read.measurement_queries import FETCH_ROWS
from treehammer.sql.read.overview_queries import list_values_by_column
from treehammer.sql.write.rollups import rebuild_rollups
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressFactory

#: Rows that are written at once.
_CHUNK = 500
#: Tables that are copied, in an order that keys allow. Those with keys, sessions, uploads, flags,
#: overrides, messages and starts are not.
_OF_CAMPAIGNS = (schema.measurement, schema.job)
_OF_COMPARISONS = (schema.verdict, schema.pair)
#: Tables whose rows belong to no campaign.
_OF_ALL = (
    schema.rollup_day,
    schema.instruction_count,
    schema.watched_series,
    schema.watched_day,
    schema.change_point,
    schema.release_check,
)


@dataclass(frozen=True)
class PublicCopy:
    """A copy, and the names that it lacks.

    Attributes:
        url: of the copy.
        campaigns: number of its campaigns.
        names: of hosts with those that replace them; without any, hosts are published.
        people: names of people; without any, people are published.
    """

    url: str
    campaigns: int
    names: PublicNames
    people: frozenset[str]


def copy_public(
    source: str, file: Path, campaigns: Sequence[str], *, with_hosts: bool, with_people: bool
) -> PublicCopy:
    """Copy what is published into a new SQLite file.

    Args:
        source: URL of the database.
        file: to write.
        campaigns: identities of the campaigns to publish; empty for all of the database.
        with_hosts: keep the names of hosts.
        with_people: keep the names of people.

    Raises:
        NothingToDoError: there is no database.
        StoreError: a database fails.
    """
    url = f"sqlite:///{file}"
    with (
        opened_engine(source, create=False) as from_,
        opened_engine(url, create=True) as to,
        read_transaction(from_) as old,
        write_transaction(to) as new,
    ):
        names = PublicNames([] if with_hosts else load_hosts(old))
        people = frozenset(() if with_people else load_people(old))
        for table, condition in _select_rows(old, campaigns):
            _copy_rows(old, new, table, condition, names, with_people=with_people)
        if campaigns:
            rebuild_rollups(new)
        count = new.scalar(sa.select(sa.func.count()).select_from(schema.campaign)) or 0
    return PublicCopy(url, count, names, people)


def _copy_rows(
    old: Connection,
    new: Connection,
    table: sa.Table,
    condition: sa.ColumnElement[bool],
    names: PublicNames,
    *,
    with_people: bool,
) -> None:
    """Copy the rows of a table as they are stored, apart from the names in their texts."""
    columns = table.columns.values()
    raw = sa.table(table.name, *(sa.column(column.name) for column in columns))
    cleaners = [*_list_cleaners(columns, names, with_people=with_people)]
    fields, marks = ", ".join(column.name for column in columns), ", ".join("?" * len(columns))
    query = sa.select(raw).where(condition).execution_options(yield_per=FETCH_ROWS)
    with old.execute(query) as result:
        while rows := [list(row) for row in islice(result, _CHUNK)]:
            for row in rows:
                for place, clean in cleaners:
                    row[place] = clean(row[place])
            text = f"INSERT INTO {table.name} ({fields}) VALUES ({marks})"  # noqa: S608
            new.exec_driver_sql(text, [*map(tuple, rows)])


def _list_cleaners(
    columns: Sequence[sa.Column[Any]], names: PublicNames, *, with_people: bool
) -> Iterator[tuple[int, Callable[[Any], Any]]]:
    """Yield the places of columns that may hold names, each with a function that removes them."""

    def replace_names(text: Any) -> Any:
        return text and names.replace(text, hides_people=not with_people)

    for place, column in enumerate(columns):
        if _may_have_names(column):
            yield place, replace_names
        if column.name in _HIDERS and not with_people:
            yield place, _HIDERS[column.name]


def _may_have_names(column: sa.Column[Any]) -> bool:
    """Return whether texts of a column may name hosts and people: no numbers, no identities."""
    is_identity = column.primary_key or column.foreign_keys or column.name.endswith("_id")
    return isinstance(column.type, StoredText | DocumentText) and not is_identity


def _hide_submitter(plan: str) -> str:
    document = json.loads(plan)
    return json.dumps({key: value for key, value in document.items() if key != "submitter"})


#: Column with a person -> removes that person from its value.
_HIDERS: Mapping[str, Callable[[Any], Any]] = {"plan": _hide_submitter, "submitter": lambda _: None}


def _select_rows(
    connection: Connection, campaigns: Sequence[str]
) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield the tables to copy, each with the condition of its rows."""

    def limit(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        """Drop the condition if all campaigns are published."""
        return condition if campaigns else sa.true()

    measured = schema.measurement.c
    is_published = limit(measured.campaign_id.in_(campaigns))
    for dimension in DIMENSIONS:
        used = sa.column("id").in_(sa.select(measured[dimension.key]).where(is_published))
        # Roll-ups and changes outlive the measurements that they were made of.
        yield schema.dimension_tables[dimension.name], limit(used)
    yield schema.campaign, limit(sa.column("id").in_(campaigns))
    for table in _OF_CAMPAIGNS:
        yield table, limit(sa.column("campaign_id").in_(campaigns))
    identities = sa.select(measured.measurement_id).where(is_published)
    yield schema.extra, sa.column("measurement_id").in_(identities)
    comparisons = _list_comparisons(connection, campaigns) if campaigns else ()
    for table in _OF_COMPARISONS:
        yield table, limit(sa.column("comparison_id").in_(comparisons))
    if not campaigns:
        yield from ((table, sa.true()) for table in _OF_ALL)


def _list_comparisons(connection: Connection, campaigns: Sequence[str]) -> list[str]:
    """List the comparisons that use measurements of these campaigns alone."""
    table, pairs = schema.verdict.c, schema.pair.c
    paired: dict[str, set[str]] = {}
    for comparison, campaign in connection.execute(
        sa.select(pairs.comparison_id, pairs.campaign_id).distinct()
    ):
        paired.setdefault(comparison, set()).add(campaign)
    query = sa.select(table.comparison_id, table.evidence).where(table.line == 0)
    return [
        comparison
        for comparison, evidence in connection.execute(query)
        if _find_campaigns(evidence) or paired.get(comparison)
        if {*(_find_campaigns(evidence) or paired[comparison])} <= {*campaigns}
    ]


def _find_campaigns(evidence: VerdictEvidence) -> Sequence[str]:
    """Find the campaigns that a comparison was limited to."""
    return evidence.campaigns or ()


@dataclass(frozen=True)
class PublicationRequest:
    """What to publish.

    Attributes:
        folder: of the site.
        campaigns: campaigns by identity or name; empty for all of the database.
        hosts: publish the names of hosts.
        people: publish the names of people.
        address: of the site; '' if unknown.
    """

    folder: Path
    campaigns: tuple[str, ...] = ()
    hosts: bool = False
    people: bool = False
    address: str = ""

    @property
    def base(self) -> str:
        """Address of the site, ending with a slash; '' if unknown.

        Raises:
            ConfigError: it is no address of the web.
        """
        if self.address and split_http_url(self.address) is None:
            raise ConfigError("must be https://HOST/PATH", where=f"--address {self.address!r}")
        return f"{self.address.rstrip('/')}/" if self.address else ""


@dataclass(frozen=True)
class Publication:
    """A written site, with the pages and problems of its check."""

    site: PublishedSite
    campaigns: int
    pages: list[SitePage]
    problems: list[SiteProblem]


def publish_site(
    settings: Settings, request: PublicationRequest, bars: ProgressFactory
) -> Publication:
    """Write a site; the folder is as it was if anything fails.

    Raises:
        ConfigError: the folder holds something else, or an option is wrong.
        NothingToDoError: there is no database, or no such campaign.
        StoreError: a page cannot be made, or would name a host or person.
    """
    base = request.base
    _require_own_folder(request.folder)
    with Store.open(settings.database, create=False) as store:
        campaigns = [store.campaign(text).id for text in request.campaigns]
    with tempfile.TemporaryDirectory(prefix="treehammer-publish-") as scratch:
        copy = copy_public(
            settings.database,
            Path(scratch) / "results.db",
            campaigns,
            with_hosts=request.hosts,
            with_people=request.people,
        )
        folder = Path(scratch) / "site"
        about = {
            "campaigns": copy.campaigns,
            "is_selection": bool(campaigns),
            "has_hosts": request.hosts,
            "has_people": request.people,
        }
        if campaigns:  # Searches for builds are of no campaign.
            settings = replace(settings, data_dir=Path(scratch))
        with open_pages(copy.url, settings) as reader:
            writer = SiteWriter(reader, folder, base, about)
            pages = writer.write(_list_releases(copy.url), bars)
        site = PublishedSite(folder)
        problems = _check_copy(site, copy)
        _replace_site(request.folder, site)
    return Publication(PublishedSite(request.folder), copy.campaigns, pages, problems)


def _check_copy(site: PublishedSite, copy: PublicCopy) -> list[SiteProblem]:
    """Find the problems of a new site; names that are left out must not be in it."""
    for problem in site.find_names(copy.names.hosts, copy.people):
        raise StoreError(
            f"nothing was published: {problem.file} {problem.problem}",
            hint="Rename it, or publish such names by --hosts or --people.",
        )
    return site.find_problems()


def _list_releases(url: str) -> list[str]:
    """List the releases that were measured, or checked in vain."""
    with Store.open(url, create=False) as store:
        measured = list_values_by_column(store, ("axis_root",))["axis_root"]
        query = sa.select(release_check.c.b).where(release_check.c.server == "")
        with store.connection() as connection:
            return sorted({*measured, *connection.scalars(query)} - {"", None})


def _require_own_folder(folder: Path) -> None:
    """Refuse a folder with other files, which a site would be mixed with."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise ConfigError(
            "the folder holds other files", where=str(folder), hint="Give an empty or new one."
        )


def _replace_site(folder: Path, site: PublishedSite) -> None:
    """Replace the files of an earlier site in a folder, and leave all others."""
    with explain_write_errors(folder):
        earlier = PublishedSite(folder).files if (folder / MANIFEST).exists() else []
        for name in earlier[1:]:  # without the list, a killed command could not be repeated
            (folder / name).unlink(missing_ok=True)
        for name in site.files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with replace_file(folder / name) as draft:
                shutil.copyfile(site.folder / name, draft)
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and ".git" not in path.parts and not any(path.iterdir()):
                path.rmdir()
