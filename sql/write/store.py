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

from treehammer.collectors.record.measurement_record import MAX_TEXT, Measurement, is_storable
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.core import schema, schema_upgrade
from treehammer.sql.core.damage_check import require_undamaged_values
from treehammer.sql.core.database_engine import (
    enable_wal,
    make_engine,
    parse_url,
    read_transaction,
    require_integrity,
    require_usable_server,
    write_transaction,
)
from treehammer.sql.core.database_errors import display_url, sqlite_path
from treehammer.sql.core.measurement_view import ALL_COLUMNS
from treehammer.sql.core.row_mapping import (
    Row,
    fetch_rows,
    insert_missing_rows,
    replace_comparison_rows,
    select_comparison_rows,
    upsert_rows,
)
from treehammer.sql.core.rows import (
    AttemptRow,
    CampaignRow,
    CountRow,
    ExtraRow,
    JobRow,
    PairRow,
    ReplicaRow,
    VerdictRow,
)
from treehammer.sql.core.schema_check import require_complete_schema
from treehammer.sql.read.figure_query import FigureQuery, FigureResult
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write import quality_flags, retention, rollups
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, AddResult, add_batch, sum_results
from treehammer.sql.write.retention import PruneResult
from treehammer.sql.write.uploaded_campaigns import CampaignUpload, UploadResult, apply_upload

if TYPE_CHECKING:
    import pyarrow as pa

    from treehammer.sql.arrow.column_conversion import Problems

#: The most values in one IN list (Oracle's limit).
MAX_IN_LIST = 1000


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

    def add(self, measurements: Iterable[Measurement]) -> AddResult:
        """Write measurements, each exactly once however often it is handed in.

        They are written in transactions of :data:`~treehammer.sql.write.recording.BATCH_MEASUREMENTS`: after an error all earlier batches are
        kept, and handing in everything again is harmless.
        """
        return sum_results(self._add_batch(batch) for batch in _split_batches(measurements))

    def _add_batch(self, batch: Sequence[Measurement]) -> AddResult:
        with write_transaction(self._engine) as connection:
            return add_batch(connection, batch)

    def add_table(self, batch: pa.RecordBatch, problems: Problems) -> AddResult:
        """Write many measurements in one transaction; see :func:`.bulk_recording.add_table`.

        They get in as by :meth:`add`, several times as fast; what cannot have been measured does not.
        """
        # Arrow takes a tenth of a second to load, which those who only look need not pay.
        from treehammer.sql.write.bulk_recording import add_table

        with write_transaction(self._engine) as connection:
            return add_table(connection, batch, problems)

    def preview_add(self, measurements: Iterable[Measurement]) -> AddResult:
        """What :meth:`add` would answer; nothing is written, and nobody waits for it.

        An identity that comes again after :data:`~treehammer.sql.write.recording.BATCH_MEASUREMENTS` measurements
        counts as new again: where it was first, nothing was written.
        """
        with read_transaction(self._engine) as connection:
            return sum_results(
                add_batch(connection, batch, write=False) for batch in _split_batches(measurements)
            )

    @contextmanager
    def snapshot(self) -> Iterator[DatabaseSnapshot]:
        """Several questions to one and the same state of the database."""
        with read_transaction(self._engine) as connection:
            yield DatabaseSnapshot(connection)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection that sees one state of the database, for questions of this room."""
        with read_transaction(self._engine) as connection:
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

    def count_measurements(self, campaign_id: str) -> list[CountRow]:
        """Measurements of a campaign by site, kind, class of failure and plausibility."""
        with self.snapshot() as snapshot:
            return snapshot.count_measurements(campaign_id)

    def fetch_figure(self, figure: FigureQuery) -> FigureResult:
        """Counts, means and spreads of metrics, in groups."""
        with self.snapshot() as snapshot:
            return snapshot.fetch_figure(figure)

    def count_by_attempt(self, campaign_id: str) -> dict[tuple[str, int], int]:
        """How many measurements of each job and attempt are here; those without any are absent."""
        with self.snapshot() as snapshot:
            return snapshot.count_by_attempt(campaign_id)

    # Campaigns, jobs, attempts

    def add_campaign(self, campaign: CampaignRow, jobs: Iterable[JobRow]) -> None:
        """Remember a campaign and its jobs; those that are known already stay as they are."""
        with write_transaction(self._engine) as connection:
            insert_missing_rows(connection, schema.campaign, [campaign])
            insert_missing_rows(connection, schema.job, jobs)

    def apply_upload(self, handed: CampaignUpload) -> UploadResult:
        """Take in what another installation tells of a campaign; see :func:`.handed_in.take_in`."""
        with write_transaction(self._engine) as connection:
            return apply_upload(connection, handed)

    def set_jobs(self, jobs: Iterable[JobRow]) -> None:
        """Write jobs, in place of what was known of them."""
        with write_transaction(self._engine) as connection:
            upsert_rows(connection, schema.job, jobs)

    def set_attempts(self, attempts: Iterable[AttemptRow]) -> None:
        """Write attempts, in place of what was known of them."""
        with write_transaction(self._engine) as connection:
            upsert_rows(connection, schema.attempt, attempts)

    def campaigns(self) -> list[CampaignRow]:
        """All campaigns, the newest first."""
        table = schema.campaign
        query = sa.select(table).order_by(table.c.created_us.desc(), table.c.id)
        return self._fetch_rows(CampaignRow, query)

    def campaign(self, reference: str) -> CampaignRow:
        """The campaign that is meant by its identity, its name, a prefix of either, or ``last``.

        Raises:
            NothingToDo: there is no campaign at all.
            ConfigError: none or several are meant; the message names them.
        """
        table = schema.campaign
        wanted = sa.select(table).where(table.c.id == sa.bindparam("wanted"))
        with read_transaction(self._engine) as connection:
            if is_storable(reference) and (
                exact := fetch_rows(connection, CampaignRow, wanted.params(wanted=reference))
            ):
                return exact[0]
            # Names alone: plans are long.
            names = sa.select(table.c.id, table.c.name)
            order = (table.c.created_us.desc(), table.c.id)
            known = [(id_, name or "") for id_, name in connection.execute(names.order_by(*order))]
            meant = _resolve_reference(reference, known, display_url(self._engine.url))
            return fetch_rows(connection, CampaignRow, wanted.params(wanted=meant))[0]

    def jobs(self, campaign_id: str) -> list[JobRow]:
        """The jobs of a campaign by site, label and repeat."""
        table = schema.job
        query = (
            sa.select(table)
            .where(table.c.campaign_id == campaign_id)
            .order_by(table.c.site, table.c.label, table.c.repeat, table.c.id)
        )
        return self._fetch_rows(JobRow, query)

    def attempts(self, job_ids: Iterable[str]) -> list[AttemptRow]:
        """The attempts of jobs, by job and number."""
        table = schema.attempt
        found: list[AttemptRow] = []
        wanted = sorted(set(job_ids))
        for start in range(0, len(wanted), MAX_IN_LIST):
            query = sa.select(table).where(table.c.job_id.in_(wanted[start : start + MAX_IN_LIST]))
            found += self._fetch_rows(AttemptRow, query.order_by(table.c.job_id, table.c.number))
        return found

    # Replicas

    def add_replicas(self, findings: Iterable[ReplicaRow]) -> None:
        """Remember what was found of replicas; a finding that is known stays as it is.

        Of a message the first :data:`~treehammer.collectors.record.measurement_record.MAX_TEXT` characters are kept.
        """
        kept = (replace(finding, message=finding.message[:MAX_TEXT]) for finding in findings)
        with write_transaction(self._engine) as connection:
            insert_missing_rows(connection, schema.replica, kept)

    def replicas(self) -> list[ReplicaRow]:
        """All that was found of replicas, by time."""
        table = schema.replica
        return self._fetch_rows(ReplicaRow, sa.select(table).order_by(table.c.found_us, table.c.id))

    def mark_bad_replicas(self) -> int:
        """Mark the measurements that read a replica while it was bad, as implausible.

        Returns:
            how many were not marked before.
        """
        findings = self.replicas()
        if all(finding.good for finding in findings):
            return 0
        with write_transaction(self._engine) as connection:
            return quality_flags.flag_bad_replica_reads(connection, findings)

    # Roll-ups

    def rebuild_rollups(self) -> None:
        """Make all roll-ups again from the measurements."""
        with write_transaction(self._engine) as connection:
            rollups.rebuild_rollups(connection)

    # Retention

    def prunable(self, what: str, before: date) -> PruneResult:
        """What :meth:`prune` would take; ``what`` is a key of ``retention.PRUNABLE``."""
        with read_transaction(self._engine) as connection:
            return retention.measure_prunable(connection, what, before)

    def prune(self, what: str, before: date) -> PruneResult:
        """Take what is large from measurements that began before a day (UTC), a day at a time.

        Their figures, histograms, failures and roll-ups stay.  Others may write in between.
        """
        with read_transaction(self._engine) as connection:
            pruned = retention.measure_prunable(connection, what, before)
            days = retention.list_prunable_days(connection, what, before)
        for day in days:
            with write_transaction(self._engine) as connection:
                retention.prune_day(connection, what, day)
        return pruned

    # Comparisons

    def replace_comparison(
        self, comparison_id: str, pairs: Iterable[PairRow], verdicts: Iterable[VerdictRow]
    ) -> None:
        """Write what a comparison found, in place of what it found before."""
        with write_transaction(self._engine) as connection:
            replace_comparison_rows(connection, schema.pair, comparison_id, list(pairs))
            replace_comparison_rows(connection, schema.verdict, comparison_id, list(verdicts))

    def pairs(self, comparison_id: str) -> list[PairRow]:
        """The pairs of a comparison, in the order in which they were given."""
        return self._fetch_rows(PairRow, select_comparison_rows(schema.pair, comparison_id))

    def verdicts(self, comparison_id: str) -> list[VerdictRow]:
        """The verdicts of a comparison, in the order in which they were given."""
        return self._fetch_rows(VerdictRow, select_comparison_rows(schema.verdict, comparison_id))

    def _fetch_rows(self, kind: type[Row], query: sa.Select[Any]) -> list[Row]:
        with read_transaction(self._engine) as connection:
            return fetch_rows(connection, kind, query)


def _resolve_reference(reference: str, known: Sequence[tuple[str, str]], where: str) -> str:
    """The identity that is meant, of campaigns by identity and name, the newest first."""
    if not known:
        raise NothingToDoError(
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


def _split_batches(measurements: Iterable[Measurement]) -> Iterator[list[Measurement]]:
    waiting = iter(measurements)
    while batch := list(islice(waiting, BATCH_MEASUREMENTS)):
        yield batch


def open_engine(url: str, *, create: bool) -> Engine:
    """The engine of a database of this version; see :meth:`Store.open`."""
    engine = _make_engine(url, create=create)
    try:
        require_usable_server(engine)
        if schema_upgrade.read_schema_state(engine) is schema_upgrade.SchemaState.EMPTY:
            if not create:
                raise _build_no_results_error(engine.url)
            enable_wal(engine)
            schema_upgrade.create_schema(engine)
        schema_upgrade.require_current_schema(engine)
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
    with Store.open(url, create=False) as store, read_transaction(store._engine) as connection:
        require_integrity(connection)
        require_complete_schema(connection)
        require_undamaged_values(connection)
        if different := rollups.find_difference(connection):
            raise StoreError(
                f"a roll-up is not what the measurements say: {different}",
                where=display_url(store.url),
                hint="Run: treehammer db rebuild",
            )
        tables = schema.metadata.sorted_tables
        count = sa.func.count()
        return {t.name: connection.scalar(sa.select(count).select_from(t)) or 0 for t in tables}


def upgrade_database(url: str, *, backed_up: bool = False) -> Path | None:
    """Bring a database to this version's schema; returns the backup of an SQLite file.

    Args:
        url: of the database.
        backed_up: that there is a backup; see :func:`treehammer.sql.core.schema_upgrade.upgrade_schema`.

    Raises:
        ConfigError: Oracle's changes cannot be undone, and nobody says that there is a backup.
        NothingToDo: there is no database.
        StoreError: it is newer than this version, or refused; then it is as it was before.
    """
    engine = _make_engine(url, create=False)
    try:
        require_usable_server(engine)
        return schema_upgrade.upgrade_schema(engine, backed_up=backed_up)
    finally:
        engine.dispose()


def _make_engine(url: str, *, create: bool) -> Engine:
    parsed = parse_url(url)
    file = sqlite_path(parsed)
    if file and not file.exists():
        if not create:
            raise _build_no_results_error(parsed)
        _create_folder(file)
    return make_engine(parsed)


def _build_no_results_error(url: URL) -> NothingToDoError:
    return NothingToDoError(
        "there are no results yet",
        where=display_url(url),
        hint="Run a test first, or give another database with --database.",
    )


def _create_folder(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"its folder cannot be made ({error.strerror})",
            where=str(file),
            hint="Give another place with --database or --data-dir.",
        ) from error
