"""Large databases for benchmarks: SQLite files or a PostgreSQL server with any number of rows.

100,000 measurements go through the store. The database copies them to other days and variants, so
that each day and series has as many measurements as in
:mod:`benchmarks.harness.synthetic_measurements`. Numbers, hosts and failures are those of the seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from benchmarks.harness import synthetic_measurements
from treehammer import config
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.errors import ConfigError
from treehammer.sql.core.measurement_columns import SUBJECT
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.schema import measurement
from treehammer.sql.engine.backend import ACCESS_OPTION
from treehammer.sql.engine.database_engine import write_transaction
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write import rollups
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, DimensionWriter
from treehammer.sql.write.store import Store
from treehammer.testbed.components.database_server import (
    UNSAFE_FAST_SETTINGS,
    PostgresServer,
    install_postgres,
)

DATABASE_KINDS = ("sqlite", "postgresql")
#: Measurements by default.
ROW_COUNT = 20_000
#: Measurements that go through the store; least and largest number of copies.
SEED_ROWS, COPIES = 100_000, (10, 200)
#: Disk space per row while a database is filled, PostgreSQL's write-ahead log included.
BYTES_PER_ROW = 2_600
# Settings of a server for bulk data that may be lost.
_BULK_SETTINGS = {
    "shared_buffers": "1GB",
    "maintenance_work_mem": "512MB",
    "work_mem": "64MB",
    "max_wal_size": "2GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    **UNSAFE_FAST_SETTINGS,
}


@dataclass(frozen=True)
class FilledDatabase:
    """A filled database.

    Attributes:
        kind: one of :data:`DATABASE_KINDS`.
        url: of the database.
        rows: measurements in it.
        stored_rows: measurements that went through the store.
        stored_wall_s: wall seconds of storing them.
        stored_cpu_s: CPU seconds of this process for storing them.
        first_day: of its measurements, YYYYMMDD.
    """

    kind: str
    url: str
    rows: int
    stored_rows: int
    stored_wall_s: float
    stored_cpu_s: float
    first_day: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks with large databases."""
    group = parser.add_argument_group("export, import, pages")
    group.add_argument(
        "--databases",
        nargs="+",
        choices=DATABASE_KINDS,
        default=DATABASE_KINDS,
        help="which (default: all)",
    )
    group.add_argument(
        "--rows", type=int, default=ROW_COUNT, help=f"measurements (default: {ROW_COUNT})"
    )
    group.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="folder for databases, reused on the same day, because they end yesterday (default: a "
        "temporary folder, see TMPDIR)",
    )


@contextmanager
def filled_database(
    kind: str, rows: int, keep: Path | None, beside: int = 0
) -> Iterator[FilledDatabase]:
    """Provide a database with so many measurements; ``keep`` preserves it.

    Args:
        kind: one of :data:`DATABASE_KINDS`.
        rows: measurements.
        keep: folder of the database, reused if it was filled today.
        beside: further bytes per row needed on the same disk.

    Raises:
        ConfigError: the disk has too little space.
        TestbedError: PostgreSQL cannot be installed.
    """
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        with _fill_or_reuse(keep, kind, rows, beside) as found:
            yield found
        return
    with (
        tempfile.TemporaryDirectory(prefix="treehammer-") as name,
        _fill_or_reuse(Path(name), kind, rows, beside) as found,
    ):
        yield found


@contextmanager
def _fill_or_reuse(folder: Path, kind: str, rows: int, beside: int) -> Iterator[FilledDatabase]:
    name = f"rows_{rows}"
    mark = folder / f"{kind}-{name}.json"
    known = json.loads(mark.read_text()) if mark.exists() else None
    if known and known.get("first_day") != synthetic_measurements.day_number(0):
        known = None  # it ends on another day than the pages show
    _require_disk_space(folder, rows, beside + (BYTES_PER_ROW if known is None else 0))
    with _database_url(kind, folder, name, anew=known is None) as url:
        if known is None:
            _print_progress(f"filling {kind} with {rows} rows")
            found = _fill_database(kind, url, rows)
            mark.write_text(json.dumps(asdict(found)))
        else:
            found = FilledDatabase(**known | {"url": url})
        yield found


def _require_disk_space(folder: Path, rows: int, each: int) -> None:
    needed, free = rows * each, shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{rows} rows need {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free",
            where=str(folder),
            hint="Use fewer rows, or a folder on another disk with --keep or TMPDIR.",
        )


@contextmanager
def _database_url(kind: str, folder: Path, name: str, *, anew: bool) -> Iterator[str]:
    """Yield the URL of a database that is reachable within the block."""
    if kind == "sqlite":
        file = folder / f"{name}.db"
        if anew:
            for suffix in ("", "-wal", "-shm"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
        yield f"sqlite:///{file.absolute()}"
        return
    with run_postgres(folder / kind) as server:
        if anew:
            server.drop_database(name)
            server.create_database(name)
        yield server.url(name)


#: Settings of a durable server.
DURABLE_SETTINGS = {"shared_buffers": "256MB"}


@contextmanager
def run_postgres(
    folder: Path, settings: Mapping[str, str] = _BULK_SETTINGS
) -> Iterator[PostgresServer]:
    """Run a server with its data in a folder."""
    found = install_postgres(config.load_settings().cache_dir / "testbed", _print_progress)
    folder.mkdir(exist_ok=True)
    server = PostgresServer(found, folder.absolute(), settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def seed_rows(rows: int) -> synthetic_measurements.SyntheticCampaigns:
    """Return the campaigns that go through the store; the rest are copies."""
    copies = min(COPIES[1], max(COPIES[0], rows // SEED_ROWS))
    return synthetic_measurements.SyntheticCampaigns(
        synthetic_measurements.DAYS // copies, rows // copies
    )


def _fill_database(kind: str, url: str, rows: int) -> FilledDatabase:
    seed = seed_rows(rows)
    with Store.open(url) as store:
        start, cpu = time.monotonic(), time.process_time()
        added = store.add(seed)
        wall_s, cpu_s = time.monotonic() - start, time.process_time() - cpu
        store.add_campaign(make_campaign_row(0), [])
        for day in range(1, synthetic_measurements.DAYS):
            store.add_campaign(make_campaign_row(day), [])
    engine = open_engine(url, create=False)
    try:
        _copy_seed(engine, synthetic_measurements.DAYS // seed.days, seed.days)
        _print_progress("rolling up")
        with write_transaction(engine) as connection:
            rollups.rebuild_rollups(connection)
            count = connection.scalar(sa.select(sa.func.count()).select_from(measurement)) or 0
        if kind == "postgresql":
            _gather_statistics(engine)
    finally:
        engine.dispose()
    return FilledDatabase(
        kind, url, count, added.new, wall_s, cpu_s, synthetic_measurements.day_number(0)
    )


def make_campaign_row(day: int) -> CampaignRow:
    """Make the row of a day's campaign."""
    created = datetime.combine(
        synthetic_measurements.FIRST_DAY, datetime.min.time(), UTC
    ) + timedelta(days=day)
    return CampaignRow(
        id=synthetic_measurements.campaign_id(day),
        name=f"daily {day:03}",
        created_us=round(created.timestamp() * 1e6),
        repository="https://git.example.org/io/tests.git",
        ref="main",
        commit_id="b" * 40,
        dirty=False,
        test_name="ttree-read",
        test_path="hctests/ttree-read",
        plan="{}",
        planned_jobs=0,
        planned_measurements=0,
    )


# Copies, made by the database.

_TEMPORARY_METADATA = sa.MetaData()
_seed_table = sa.Table(
    "seed", _TEMPORARY_METADATA, *(sa.Column(c.name, c.type) for c in measurement.c)
)
_seed_day_table = sa.Table(
    "seed_day",
    _TEMPORARY_METADATA,
    sa.Column("day", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("later", sa.BigInteger),
    sa.Column("campaign_id", sa.String(64)),
    sa.Column("job", sa.String(64)),
    prefixes=["TEMPORARY"],
)
_seed_subject_table = sa.Table(
    "seed_subject",
    _TEMPORARY_METADATA,
    sa.Column("subject_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("later", sa.BigInteger),
    prefixes=["TEMPORARY"],
)


def _copy_seed(engine: Engine, copies: int, days: int) -> None:
    with engine.connect() as plain:
        connection = plain.execution_options(**{ACCESS_OPTION: "write"})
        with connection.begin():
            connection.exec_driver_sql("CREATE TEMPORARY TABLE seed AS SELECT * FROM measurement")
            _seed_day_table.create(connection)
            _seed_subject_table.create(connection)
            every = [*_insert_subjects().values()]
            for start in range(0, len(every), BATCH_MEASUREMENTS):
                some = every[start : start + BATCH_MEASUREMENTS]
                needed = {(SUBJECT.name, row["id"]): row for row in some}
                DimensionWriter().insert_missing(connection, needed)
        for copy in range(1, copies):
            with connection.begin():
                _map_seed(connection, copy * days, days)
                connection.execute(_copied_columns(copy, copy * days * DAY_US))
        with connection.begin():
            _TEMPORARY_METADATA.drop_all(connection, checkfirst=False)


def _insert_subjects() -> dict[tuple[int, int, int], dict[str, Any]]:
    return {
        (site, variant, release): SUBJECT.extract_row(
            synthetic_measurements.subject_columns(site, variant, release)
        )
        for site in range(len(synthetic_measurements.SITE_NAMES))
        for variant in range(synthetic_measurements.VARIANT_COUNT)
        for release in range(len(synthetic_measurements.RELEASES))
    }


def _map_seed(connection: Connection, days: int, seed_days: int) -> None:
    """Map each day and subject of the seed to its copies."""
    for table in (_seed_day_table, _seed_subject_table):
        connection.execute(sa.delete(table))
    moved = [
        {
            "day": synthetic_measurements.day_number(day),
            "later": synthetic_measurements.day_number(day + days),
            "campaign_id": synthetic_measurements.campaign_id(day + days),
            "job": synthetic_measurements.job_id(day + days, 0)[:4],
        }
        for day in range(seed_days)
    ]
    connection.execute(sa.insert(_seed_day_table), moved)
    every = _insert_subjects()
    later = [
        {
            "subject_id": row["id"],
            "later": every[site, synthetic_measurements.variant_days_later(variant, days), release][
                "id"
            ],
        }
        for (site, variant, release), row in every.items()
    ]
    connection.execute(sa.insert(_seed_subject_table), later)


def _copied_columns(copy: int, later_us: int) -> sa.Insert:
    columns = {column.name: column for column in _seed_table.c} | {
        # Not a hexadecimal digit, so that it is none of the seed's identities.
        "measurement_id": sa.literal(f"x{copy:03}")
        + sa.func.substr(_seed_table.c.measurement_id, 5),
        "campaign_id": _seed_day_table.c.campaign_id,
        "job_id": _seed_day_table.c.job + sa.func.substr(_seed_table.c.job_id, 5),
        "started_us": _seed_table.c.started_us + later_us,
        "ended_us": _seed_table.c.ended_us + later_us,
        "day": _seed_day_table.c.later,
        "subject_id": _seed_subject_table.c.later,
    }
    moved = _seed_table.join(_seed_day_table, _seed_day_table.c.day == _seed_table.c.day).join(
        _seed_subject_table, _seed_subject_table.c.subject_id == _seed_table.c.subject_id
    )
    return sa.insert(measurement).from_select(
        [*columns], sa.select(*columns.values()).select_from(moved), include_defaults=False
    )


def _gather_statistics(engine: Engine) -> None:
    """Gather statistics at once, which a server does minutes later."""
    with engine.connect() as connection:
        alone = connection.execution_options(isolation_level="AUTOCOMMIT")
        alone.exec_driver_sql("VACUUM (ANALYZE)")


def _print_progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr)
