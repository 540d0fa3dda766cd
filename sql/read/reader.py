"""Read access to the results database: rows by reference, names by search, fingerprints of selections.

A fingerprint changes when the content of the selected measurements does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.core import schema
from treehammer.sql.core.rows import (
    AttemptRow,
    CampaignRow,
    InstructionRow,
    JobRow,
    PairRow,
    ReplicaRow,
    VerdictRow,
)
from treehammer.sql.core.schema import campaign, dimension_tables, job
from treehammer.sql.engine.backend import display_url, translate_errors
from treehammer.sql.engine.database_engine import (
    Row,
    load_by_ids,
    load_rows,
    load_rows_by_ids,
    read_transaction,
)
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.measurement_queries import (
    DatabaseSnapshot,
    MeasurementQueries,
    select_measurements,
)
from treehammer.sql.read.query_model import Selection

#: Hits of each kind at most.
MAX_HITS = 20
_SUBJECT = dimension_tables["subject"].c
_NODE = dimension_tables["node"].c
#: Matches of one kind that are ranked.
_MAX_READ = 1000


class ResultsReader(MeasurementQueries):
    """An open results database that is only read.

    Use it as a context manager or :meth:`close` it. Every method raises
    :class:`~treehammer.errors.StoreError` when the database refuses.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shared: Connection | None = None

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the existing database at a SQLAlchemy URL.

        Args:
            url: for instance ``sqlite:////home/me/results.db``.

        Raises:
            ConfigError: the URL is wrong.
            NothingToDoError: no database exists there.
            StoreError: the database cannot be opened or has another schema version.
        """
        return cls(open_engine(url, create=False))

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> URL:
        """URL of the database."""
        return self._engine.url

    @property
    def dialect(self) -> str:
        """SQL dialect of the database."""
        return self._engine.dialect.name

    @contextmanager
    def snapshot(self) -> Iterator[DatabaseSnapshot]:
        """Run several queries on one state of the database."""
        with self.connection() as connection:
            yield DatabaseSnapshot(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Connect to one state of the database, for queries of this package."""
        if self._shared is not None:
            with translate_errors(self._engine.url):
                yield self._shared
            return
        with read_transaction(self._engine) as connection:
            yield connection

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Run all queries within on one state of the database, in one transaction.

        They must run in one thread.
        """
        with self.connection() as connection:
            self._shared = connection
            try:
                yield
            finally:
                self._shared = None

    @contextmanager
    def frozen(self) -> Iterator[ResultsReader]:
        """Yield a reader of one state of the database; other threads may use this one meanwhile."""
        reader = ResultsReader(self._engine)
        with reader.one_state():
            yield reader

    # Campaigns, jobs, attempts

    def campaigns(self) -> list[CampaignRow]:
        """List all campaigns, newest first."""
        table = schema.campaign
        query = sa.select(table).order_by(table.c.created_us.desc(), table.c.id)
        return self.load_rows(CampaignRow, query)

    def campaign(self, reference: str) -> CampaignRow:
        """Find the campaign with this identity or name, a prefix of either, or ``last``.

        Raises:
            NothingToDoError: no campaign exists at all.
            ConfigError: none or several match; the message lists them.
        """
        table = schema.campaign
        by_id = sa.select(table).where(table.c.id == sa.bindparam("wanted"))
        with self.connection() as connection:
            if is_storable(reference) and (
                exact := load_rows(connection, CampaignRow, by_id.params(wanted=reference))
            ):
                return exact[0]
            # Plans are long, so only names are fetched.
            names = sa.select(table.c.id, table.c.name)
            order = (table.c.created_us.desc(), table.c.id)
            campaigns = [
                (id_, name or "") for id_, name in connection.execute(names.order_by(*order))
            ]
            id_ = _resolve_reference(reference, campaigns, display_url(self._engine.url))
            return load_rows(connection, CampaignRow, by_id.params(wanted=id_))[0]

    def campaign_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Map campaigns to their names; those without a name are left out."""
        table = schema.campaign
        query = sa.select(table.c.id, table.c.name).where(table.c.name.is_not(None))
        with self.connection() as connection:
            return dict(map(tuple, load_by_ids(connection, query, table.c.id, ids)))

    def jobs(self, campaign_id: str) -> list[JobRow]:
        """List the jobs of a campaign by site, label and repeat."""
        table = schema.job
        query = (
            sa.select(table)
            .where(table.c.campaign_id == campaign_id)
            .order_by(table.c.site, table.c.label, table.c.repeat, table.c.id)
        )
        return self.load_rows(JobRow, query)

    def attempts(self, job_ids: Iterable[str]) -> list[AttemptRow]:
        """List the attempts of jobs, by job and number."""
        table = schema.attempt
        query = sa.select(table).order_by(table.c.job_id, table.c.number)
        with self.connection() as connection:
            return load_rows_by_ids(connection, AttemptRow, query, table.c.job_id, sorted(job_ids))

    # Replicas and comparisons

    def replicas(self) -> list[ReplicaRow]:
        """List all replica checks, by time."""
        table = schema.replica
        return self.load_rows(ReplicaRow, sa.select(table).order_by(table.c.found_us, table.c.id))

    def pairs(self, comparison_id: str) -> list[PairRow]:
        """List the pairs of a comparison, in recorded order."""
        table = schema.pair
        query = sa.select(table).where(table.c.comparison_id == comparison_id)
        return self.load_rows(PairRow, query.order_by(table.c.line))

    def verdicts(self, comparison_id: str) -> list[VerdictRow]:
        """List the verdicts of a comparison, in recorded order."""
        table = schema.verdict
        query = sa.select(table).where(table.c.comparison_id == comparison_id)
        return self.load_rows(VerdictRow, query.order_by(table.c.line))

    # Counts of instructions

    def instruction_counts(self, test_hashes: Iterable[str] | None = None) -> list[InstructionRow]:
        """List the counts of some tests, by their hashes, or of all, by count and line."""
        table = schema.instruction_count
        query = sa.select(table).order_by(table.c.count_id, table.c.line)
        if test_hashes is None:
            return self.load_rows(InstructionRow, query)
        with self.connection() as connection:
            hashes = sorted(test_hashes)
            return load_rows_by_ids(connection, InstructionRow, query, table.c.test_hash, hashes)

    def load_rows(self, kind: type[Row], query: sa.Select[Any]) -> list[Row]:
        """Load the rows of a query as dataclasses."""
        with self.connection() as connection:
            return load_rows(connection, kind, query)


def _resolve_reference(reference: str, campaigns: Sequence[tuple[str, str]], where: str) -> str:
    """Find the identity that a reference means.

    ``campaigns`` holds identity and name of every campaign, newest first.
    """
    if not campaigns:
        raise NothingToDoError(
            "there are no campaigns yet", where=where, hint="Start one: treehammer submit"
        )
    if reference == "last":
        return campaigns[0][0]
    matches = _find_matches(reference, campaigns) if reference else []
    if len(matches) != 1:
        problem = "several campaigns match" if matches else "no campaign matches"
        choices = "\n  ".join(f"{id_}  {name}" for id_, name in (matches or campaigns)[:10])
        near = "" if matches else suggest_word(reference, itertools.chain(*campaigns))
        raise ConfigError(
            problem,
            where=f"campaign {reference!r}",
            hint=f"{near}Name one of, or 'last':\n  {choices}",
        )
    return matches[0][0]


def _find_matches(reference: str, campaigns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Find campaigns with this name, else those whose identity or else name begins with it."""
    return (
        [item for item in campaigns if item[1] == reference]
        or [item for item in campaigns if item[0].startswith(reference)]
        or [item for item in campaigns if item[1].startswith(reference)]
    )


class HitKind(StrEnum):
    """Kinds of names, in the order in which they are shown."""

    SITE = "site"
    CAMPAIGN = "campaign"
    JOB = "job"
    HOST = "host"
    RELEASE = "ROOT release"
    TEST = "test"


@dataclass(frozen=True)
class SearchHit:
    """A name that was found; ``identity`` names it in addresses."""

    kind: HitKind
    name: str
    identity: str


def search_names(store: ResultsReader, text: str) -> list[SearchHit]:
    """Find names that contain a text in any case, and identities that begin with it.

    Of each kind the exact name comes first, then those that begin with the text.

    Args:
        store: the database.
        text: at least one character other than a space.
    """
    lowered = text.strip().lower()
    if not lowered:
        return []
    hits: list[SearchHit] = []
    with store.connection() as connection:
        for kind, name, identity in _SOURCES:
            condition = sa.func.lower(name).contains(lowered, autoescape=True)
            if kind is HitKind.JOB:  # millions of jobs: an index finds the beginning only
                condition = identity.startswith(text.strip(), autoescape=True)
            elif identity is not name:
                condition |= identity.startswith(lowered, autoescape=True)
            query = (
                sa.select(name, identity)
                .where(condition)
                .distinct()
                .order_by(name, identity)
                .limit(_MAX_READ)
            )
            matches = [SearchHit(kind, *row) for row in connection.execute(query)]
            # Exact names first, then those that begin with the text.
            matches.sort(key=lambda hit: not hit.name.lower().startswith(lowered))
            matches.sort(key=lambda hit: hit.name.lower() != lowered)
            hits += matches[:MAX_HITS]
    return hits


#: Kind, column of the name, and of the identity.
_SOURCES: tuple[tuple[HitKind, sa.ColumnElement[str], sa.ColumnElement[str]], ...] = (
    (HitKind.SITE, _SUBJECT.site, _SUBJECT.site),
    (HitKind.CAMPAIGN, campaign.c.name, campaign.c.id),
    (HitKind.JOB, job.c.id, job.c.id),
    (HitKind.HOST, _NODE.host, _NODE.host),
    (HitKind.RELEASE, _SUBJECT.axis_root, _SUBJECT.axis_root),
    (HitKind.TEST, _SUBJECT.test_name, _SUBJECT.test_name),
)


def fingerprint_selection(
    reader: ResultsReader, selection: Selection, prunable: Sequence[str], limit: int
) -> list[tuple[Any, ...]]:
    """List the rows of a selection, up to ``limit`` + 1, by their values that may change.

    A stored measurement changes only when it is marked implausible or its columns are pruned.

    Returns:
        identity, whether it is plausible, and for each column whether its value is absent; sorted.
    """
    with reader.connection() as connection:
        columns = ["measurement_id", "plausible", *prunable]
        query = select_measurements(selection, connection.dialect.name, columns)
        query = query.order_by(None).limit(limit + 1)
        id_, plausible, *prunable_columns = query.subquery("selected").c
        is_absent = (sa.case((column.is_(None), 1), else_=0) for column in prunable_columns)
        return sorted(map(tuple, connection.execute(sa.select(id_, plausible, *is_absent))))
