"""Large SQLite databases for benchmarks, with any number of measurements.

The measurements of the first days go through the store. The database copies them to later days, so
that each day and series has as many measurements as in
:mod:`benchmarks.harness.synthetic_measurements`. Numbers, hosts and failures are those of the seed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from benchmarks.harness import synthetic_measurements
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.collectors.record.measurement_record import make_measurement_id
from treehammer.errors import ConfigError
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.schema import measurement
from treehammer.sql.engine.backend import ACCESS_OPTION
from treehammer.sql.engine.database_engine import write_transaction
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write import rollups
from treehammer.sql.write.store import Store

#: Measurements by default.
ROW_COUNT = 20_000
#: Copies of the first days: each seed has a multiple of eight days, after which variants repeat.
FEW_COPIES, MANY_COPIES = 10, 50
#: Disk space per row while a database is filled.
BYTES_PER_ROW = 2_600


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks with large databases."""
    group = parser.add_argument_group("export, import, pages")
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
def filled_database(rows: int, keep: Path | None, extra_bytes: int = 0) -> Iterator[Path]:
    """Provide the file of a database with so many measurements.

    Args:
        rows: measurements.
        keep: folder in which the database is kept, and reused if it was filled today.
        extra_bytes: further bytes per row needed on the same disk.

    Raises:
        ConfigError: the disk has too little space.
    """
    with tempfile.TemporaryDirectory(prefix="treehammer-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"rows-{rows}-from-{synthetic_measurements.day_number(0)}.db"
        needed = rows * (extra_bytes + (0 if file.exists() else BYTES_PER_ROW))
        if needed > (free := shutil.disk_usage(folder).free):
            raise ConfigError(
                f"{rows} rows need {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free",
                where=str(folder),
                hint="Use fewer rows, or a folder on another disk with --keep or TMPDIR.",
            )
        if not file.exists():
            # Databases of other days show nothing on the pages of today.
            for outdated in folder.glob(f"rows-{rows}-from-*"):
                outdated.unlink()
            print(f"  filling a database with {rows} rows", file=sys.stderr)
            part = file.with_suffix(".part")
            _fill_database(f"sqlite:///{part.absolute()}", rows)
            part.rename(file)
        yield file.absolute()


def seed_campaigns(rows: int) -> synthetic_measurements.SyntheticCampaigns:
    """Return the campaigns that go through the store; the rest are copies."""
    copies = FEW_COPIES if rows <= 1_000_000 else MANY_COPIES
    return synthetic_measurements.SyntheticCampaigns(
        synthetic_measurements.DAYS // copies, rows // copies
    )


def _fill_database(url: str, rows: int) -> None:
    seed = seed_campaigns(rows)
    with Store.open(url) as store:
        store.add(seed)
        for day in range(synthetic_measurements.DAYS):
            store.add_campaign(make_campaign_row(day), [])
    engine = open_engine(url, create=False)
    try:
        _copy_seed(engine, synthetic_measurements.DAYS // seed.days, seed.days)
        with write_transaction(engine) as connection:
            rollups.rebuild_rollups(connection)
        with engine.connect() as connection:
            # The file is renamed without its write-ahead log.
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        engine.dispose()


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
        plan=CampaignPlan(),
        planned_jobs=0,
        planned_measurements=0,
    )


#: Columns that differ in a copy.
_COPIED_COLUMNS = {
    "measurement_id": (
        "make_measurement_id(moved_day.job || substr(seed.job_id, 5), seed.attempt, seed.round, "
        "seed.position)"
    ),
    "campaign_id": "moved_day.campaign_id",
    "job_id": "moved_day.job || substr(seed.job_id, 5)",
    "started_us": "seed.started_us + :later_us",
    "ended_us": "seed.ended_us + :later_us",
    "day": "moved_day.later",
}


def _copy_seed(engine: Engine, copies: int, days: int) -> None:
    """Copy the measurements of the first days to all later ones."""
    expressions = {
        column.name: _COPIED_COLUMNS.get(column.name, f'seed."{column.name}"')
        for column in measurement.c
    }
    names = ", ".join(f'"{name}"' for name in expressions)
    statement = sa.text(
        f"INSERT INTO measurement ({names}) SELECT {', '.join(expressions.values())} FROM seed "
        "JOIN moved_day ON moved_day.copy = :copy AND moved_day.day = seed.day"
    )
    moved_days = [
        {
            "copy": copy,
            "day": synthetic_measurements.day_number(day),
            "later": synthetic_measurements.day_number(copy * days + day),
            "campaign_id": synthetic_measurements.campaign_id(copy * days + day),
            "job": synthetic_measurements.job_id(copy * days + day, 0)[:4],
        }
        for copy in range(1, copies)
        for day in range(days)
    ]
    with engine.connect() as plain:
        connection = plain.execution_options(**{ACCESS_OPTION: "write"})
        driver_connection: Any = connection.connection.driver_connection
        driver_connection.create_function("make_measurement_id", 4, make_measurement_id)
        with connection.begin():
            connection.exec_driver_sql("CREATE TEMPORARY TABLE seed AS SELECT * FROM measurement")
            connection.exec_driver_sql(
                "CREATE TEMPORARY TABLE moved_day (copy INTEGER, day INTEGER, later INTEGER, "
                "campaign_id TEXT, job TEXT, PRIMARY KEY (copy, day))"
            )
            insert = "INSERT INTO moved_day VALUES (:copy, :day, :later, :campaign_id, :job)"
            connection.execute(sa.text(insert), moved_days)
        for copy in range(1, copies):
            with connection.begin():
                later_us = copy * days * DAY_US
                connection.execute(statement, {"copy": copy, "later_us": later_us})
