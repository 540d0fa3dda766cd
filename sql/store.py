"""The store: the one way into the results database, and the only writer of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.collectors.metrics import Value
from treehammer.collectors.record import MAX_TEXT, Measurement, is_storable
from treehammer.errors import ConfigError, NothingToDo, StoreError
from treehammer.sql import marks, migrate, retention, rollups, schema
from treehammer.sql.damage import require_undamaged
from treehammer.sql.database import (
    make_engine,
    parse_url,
    reading,
    require_usable,
    require_whole,
    switch_to_wal,
    writing,
)
from treehammer.sql.figures import Answer, Figure
from treehammer.sql.handed_in import HandedIn, Taken, take_in
from treehammer.sql.layout import require_layout
from treehammer.sql.queries import Snapshot
from treehammer.sql.recording import BATCH, Added, add_batch, total
from treehammer.sql.retention import Pruned
from treehammer.sql.rows import (
    AttemptRow,
    CampaignRow,
    CountRow,
    ExtraRow,
    JobRow,
    PairRow,
    ReplicaRow,
    VerdictRow,
)
from treehammer.sql.selection import Selection
from treehammer.sql.tables import Row, fetch, insert_missing, lines, replace_lines, upsert
from treehammer.sql.troubles import shown, sqlite_file
from treehammer.sql.wide import ALL_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from treehammer.sql.columns import Problems

#: The most values in one IN list (Oracle's limit).
IN_LIST = 1000


class Store:
    """The results database, open.  Use it as a context manager or :meth:`close` it.

    Every method raises :class:`~treehammer.errors.StoreError` when the database refuses; nothing
    that was recorded before is lost by that.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str, *, create: bool = True) -> Store:
        """Open the database at a SQLAlchemy URL.

        Args:
            url: for instance ``sqlite:////home/me/results.db``.
            create: make the database, and an SQLite file's folder, when there is none.

        Raises:
            ConfigError: the URL is wrong.
            NothingToDo: there is no database and ``create`` is false.
            StoreError: it cannot be opened, or is not of this version; the message says what to do.
        """
        return cls(open_engine(url, create=create))

    def close(self) -> None:
        """Let go of every connection."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def url(self) -> URL:
        """Where the database is."""
        return self._engine.url

    # Measurements

    def add(self, measurements: Iterable[Measurement]) -> Added:
        """Write measurements, each exactly once however often it is handed in.

        They are written in transactions of :data:`~treehammer.sql.recording.BATCH`: after an error all earlier batches are
        kept, and handing in everything again is harmless.
        """
        return total(self._add(batch) for batch in _batches(measurements))

    def _add(self, batch: Sequence[Measurement]) -> Added:
        with writing(self._engine) as connection:
            return add_batch(connection, batch)

    def add_table(self, batch: pa.RecordBatch, problems: Problems) -> Added:
        """Write many measurements in one transaction; see :func:`.bulk_recording.add_table`.

        They get in as by :meth:`add`, several times as fast; what cannot have been measured does not.
        """
        # Arrow takes a tenth of a second to load, which those who only look need not pay.
        from treehammer.sql.bulk_recording import add_table

        with writing(self._engine) as connection:
            return add_table(connection, batch, problems)

    def would_add(self, measurements: Iterable[Measurement]) -> Added:
        """What :meth:`add` would answer; nothing is written, and nobody waits for it.

        An identity that comes again after :data:`~treehammer.sql.recording.BATCH` measurements
        counts as new again: where it was first, nothing was written.
        """
        with reading(self._engine) as connection:
            return total(
                add_batch(connection, batch, write=False) for batch in _batches(measurements)
            )

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Several questions to one and the same state of the database."""
        with reading(self._engine) as connection:
            yield Snapshot(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection that sees one state of the database, for questions of this room."""
        with reading(self._engine) as connection:
            yield connection

    def measurements(
        self, selection: Selection, columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Value]]:
        """Stream the selected measurements; see :meth:`Snapshot.measurements`."""
        with self.snapshot() as snapshot:
            yield from snapshot.measurements(selection, columns or ALL_COLUMNS)

    def extras(self, selection: Selection) -> Iterator[ExtraRow]:
        """Stream the test-defined metrics of the selected measurements."""
        with self.snapshot() as snapshot:
            yield from snapshot.extras(selection)

    def counts(self, campaign_id: str) -> list[CountRow]:
        """Measurements of a campaign by site, kind, class of failure and plausibility."""
        with self.snapshot() as snapshot:
            return snapshot.counts(campaign_id)

    def figure(self, figure: Figure) -> Answer:
        """Counts, means and spreads of metrics, in groups."""
        with self.snapshot() as snapshot:
            return snapshot.figure(figure)

    def recorded(self, campaign_id: str) -> dict[tuple[str, int], int]:
        """How many measurements of each job and attempt are here; those without any are absent."""
        with self.snapshot() as snapshot:
            return snapshot.recorded(campaign_id)

    # Campaigns, jobs, attempts

    def add_campaign(self, campaign: CampaignRow, jobs: Iterable[JobRow]) -> None:
        """Remember a campaign and its jobs; those that are known already stay as they are."""
        with writing(self._engine) as connection:
            insert_missing(connection, schema.campaign, [campaign])
            insert_missing(connection, schema.job, jobs)

    def hand_in(self, handed: HandedIn) -> Taken:
        """Take in what another installation tells of a campaign; see :func:`.handed_in.take_in`."""
        with writing(self._engine) as connection:
            return take_in(connection, handed)

    def set_jobs(self, jobs: Iterable[JobRow]) -> None:
        """Write jobs, in place of what was known of them."""
        with writing(self._engine) as connection:
            upsert(connection, schema.job, jobs)

    def set_attempts(self, attempts: Iterable[AttemptRow]) -> None:
        """Write attempts, in place of what was known of them."""
        with writing(self._engine) as connection:
            upsert(connection, schema.attempt, attempts)

    def campaigns(self) -> list[CampaignRow]:
        """All campaigns, the newest first."""
        table = schema.campaign
        query = sa.select(table).order_by(table.c.created_us.desc(), table.c.id)
        return self._rows(CampaignRow, query)

    def campaign(self, reference: str) -> CampaignRow:
        """The campaign that is meant by its identity, its name, a prefix of either, or ``last``.

        Raises:
            NothingToDo: there is no campaign at all.
            ConfigError: none or several are meant; the message names them.
        """
        table = schema.campaign
        wanted = sa.select(table).where(table.c.id == sa.bindparam("wanted"))
        with reading(self._engine) as connection:
            if is_storable(reference) and (
                exact := fetch(connection, CampaignRow, wanted.params(wanted=reference))
            ):
                return exact[0]
            # Names alone: plans are long.
            names = sa.select(table.c.id, table.c.name)
            order = (table.c.created_us.desc(), table.c.id)
            known = [(id_, name or "") for id_, name in connection.execute(names.order_by(*order))]
            meant = _meant(reference, known, shown(self._engine.url))
            return fetch(connection, CampaignRow, wanted.params(wanted=meant))[0]

    def jobs(self, campaign_id: str) -> list[JobRow]:
        """The jobs of a campaign by site, label and repeat."""
        table = schema.job
        query = (
            sa.select(table)
            .where(table.c.campaign_id == campaign_id)
            .order_by(table.c.site, table.c.label, table.c.repeat, table.c.id)
        )
        return self._rows(JobRow, query)

    def attempts(self, job_ids: Iterable[str]) -> list[AttemptRow]:
        """The attempts of jobs, by job and number."""
        table = schema.attempt
        found: list[AttemptRow] = []
        wanted = sorted(set(job_ids))
        for start in range(0, len(wanted), IN_LIST):
            query = sa.select(table).where(table.c.job_id.in_(wanted[start : start + IN_LIST]))
            found += self._rows(AttemptRow, query.order_by(table.c.job_id, table.c.number))
        return found

    # Replicas

    def add_replicas(self, findings: Iterable[ReplicaRow]) -> None:
        """Remember what was found of replicas; a finding that is known stays as it is.

        Of a message the first :data:`~treehammer.collectors.record.MAX_TEXT` characters are kept.
        """
        kept = (replace(finding, message=finding.message[:MAX_TEXT]) for finding in findings)
        with writing(self._engine) as connection:
            insert_missing(connection, schema.replica, kept)

    def replicas(self) -> list[ReplicaRow]:
        """All that was found of replicas, by time."""
        table = schema.replica
        return self._rows(ReplicaRow, sa.select(table).order_by(table.c.found_us, table.c.id))

    def mark_bad_replicas(self) -> int:
        """Mark the measurements that read a replica while it was bad, as implausible.

        Returns:
            how many were not marked before.
        """
        findings = self.replicas()
        if all(finding.good for finding in findings):
            return 0
        with writing(self._engine) as connection:
            return marks.mark(connection, findings)

    # Roll-ups

    def remake_rollups(self) -> None:
        """Make all roll-ups again from the measurements."""
        with writing(self._engine) as connection:
            rollups.remake(connection)

    # Retention

    def prunable(self, what: str, before: date) -> Pruned:
        """What :meth:`prune` would take; ``what`` is a key of ``retention.PRUNABLE``."""
        with reading(self._engine) as connection:
            return retention.what_goes(connection, what, before)

    def prune(self, what: str, before: date) -> Pruned:
        """Take what is large from measurements that began before a day (UTC), a day at a time.

        Their figures, histograms, failures and roll-ups stay.  Others may write in between.
        """
        with reading(self._engine) as connection:
            pruned = retention.what_goes(connection, what, before)
            days = retention.days(connection, what, before)
        for day in days:
            with writing(self._engine) as connection:
                retention.prune_day(connection, what, day)
        return pruned

    # Comparisons

    def replace_comparison(
        self, comparison_id: str, pairs: Iterable[PairRow], verdicts: Iterable[VerdictRow]
    ) -> None:
        """Write what a comparison found, in place of what it found before."""
        with writing(self._engine) as connection:
            replace_lines(connection, schema.pair, comparison_id, list(pairs))
            replace_lines(connection, schema.verdict, comparison_id, list(verdicts))

    def pairs(self, comparison_id: str) -> list[PairRow]:
        """The pairs of a comparison, in the order in which they were given."""
        return self._rows(PairRow, lines(schema.pair, comparison_id))

    def verdicts(self, comparison_id: str) -> list[VerdictRow]:
        """The verdicts of a comparison, in the order in which they were given."""
        return self._rows(VerdictRow, lines(schema.verdict, comparison_id))

    def _rows(self, kind: type[Row], query: sa.Select[Any]) -> list[Row]:
        with reading(self._engine) as connection:
            return fetch(connection, kind, query)


def _meant(reference: str, known: Sequence[tuple[str, str]], where: str) -> str:
    """The identity that is meant, of campaigns by identity and name, the newest first."""
    if not known:
        raise NothingToDo(
            "there are no campaigns yet", where=where, hint="Start one: treehammer submit"
        )
    if reference == "last":
        return known[0][0]
    meant = (
        [one for one in known if one[1] == reference]
        or [one for one in known if reference and one[0].startswith(reference)]
        or [one for one in known if reference and one[1].startswith(reference)]
    )
    if len(meant) != 1:
        what = "several campaigns are meant" if meant else "there is no such campaign"
        choices = "\n  ".join(f"{id_}  {name}" for id_, name in (meant or known)[:10])
        raise ConfigError(
            what, where=f"campaign {reference!r}", hint=f"Name one of, or 'last':\n  {choices}"
        )
    return meant[0][0]


def _batches(measurements: Iterable[Measurement]) -> Iterator[list[Measurement]]:
    waiting = iter(measurements)
    while batch := list(islice(waiting, BATCH)):
        yield batch


def open_engine(url: str, *, create: bool) -> Engine:
    """The engine of a database of this version; see :meth:`Store.open`."""
    engine = _engine(url, create=create)
    try:
        require_usable(engine)
        if migrate.state(engine) is migrate.State.EMPTY:
            if not create:
                raise _no_results(engine.url)
            switch_to_wal(engine)
            migrate.create(engine)
        migrate.require_current(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def check_database(url: str) -> dict[str, int]:
    """Check that a database is whole and of this version.

    Returns:
        how many rows each table has.

    Raises:
        NothingToDo: there is no database.
        StoreError: it is damaged or not of this version; the message says what to do.
    """
    with Store.open(url, create=False) as store, reading(store._engine) as connection:
        require_whole(connection)
        require_layout(connection)
        require_undamaged(connection)
        if different := rollups.difference(connection):
            raise StoreError(
                f"a roll-up is not what the measurements say: {different}",
                where=shown(store.url),
                hint="Run: treehammer db rebuild",
            )
        tables = schema.metadata.sorted_tables
        count = sa.func.count()
        return {t.name: connection.scalar(sa.select(count).select_from(t)) or 0 for t in tables}


def upgrade_database(url: str, *, backed_up: bool = False) -> Path | None:
    """Bring a database to this version's schema; returns the backup of an SQLite file.

    Args:
        url: of the database.
        backed_up: that there is a backup; see :func:`treehammer.sql.migrate.upgrade`.

    Raises:
        ConfigError: Oracle's changes cannot be undone, and nobody says that there is a backup.
        NothingToDo: there is no database.
        StoreError: it is newer than this version, or refused; then it is as it was before.
    """
    engine = _engine(url, create=False)
    try:
        require_usable(engine)
        return migrate.upgrade(engine, backed_up=backed_up)
    finally:
        engine.dispose()


def _engine(url: str, *, create: bool) -> Engine:
    parsed = parse_url(url)
    file = sqlite_file(parsed)
    if file and not file.exists():
        if not create:
            raise _no_results(parsed)
        _make_folder(file)
    return make_engine(parsed)


def _no_results(url: URL) -> NothingToDo:
    return NothingToDo(
        "there are no results yet",
        where=shown(url),
        hint="Run a test first, or give another database with --database.",
    )


def _make_folder(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"its folder cannot be made ({error.strerror})",
            where=str(file),
            hint="Give another place with --database or --data-dir.",
        ) from error
