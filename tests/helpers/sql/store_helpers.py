"""Filled stores as fixtures, and contents of stores and exported files, for tests of the sql package."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import (
    HOSTILE_TEXTS,
    build_instruction_rows,
    build_pair,
    build_verdict,
    full_measurement,
    judge_again,
    make_campaign_row,
    make_job_row,
    make_measurement,
    make_operation,
    random_operations,
)

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.sql.core.access_keys import AccessGrant
from treehammer.sql.core.column_types import DocumentText
from treehammer.sql.core.rows import AttemptRow, ExtraRow, ReplicaRow
from treehammer.sql.core.schema import metadata, rollup_day, rollup_operation
from treehammer.sql.engine.database_engine import make_engine, parse_url
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_stream, measurement_files
from treehammer.sql.transfer.export import export_file
from treehammer.sql.transfer.importer import ImportResult, import_files, list_files
from treehammer.sql.write.audit_trail import Delivery, Sender
from treehammer.sql.write.keyring import Keyring, SessionTable
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressCallback, no_progress

EVERYTHING = Selection()


def read_rows(store: Store) -> dict[str, dict[str, Value]]:
    return {str(row["measurement_id"]): row for row in store.measurements(EVERYTHING)}


@contextmanager
def limit_file_sizes(limit_bytes: int) -> Iterator[None]:
    """Let files of this process grow to a size only, which has the effect of a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def fill_database(url: str) -> None:
    """Insert rows into every table, including edge cases."""
    with Store.open(url) as store:
        store.add_campaign(
            make_campaign_row(), [make_job_row("a"), make_job_row("b", label=HOSTILE_TEXTS[2])]
        )
        store.set_attempts([AttemptRow("a", 2, "lost", 5, 9, None, "lost", "gone")])
        store.add(full_measurement(n) for n in range(120))
        store.add(
            make_measurement(job=str(n), host=text, extras={"e": n / 3})
            for n, text in enumerate(HOSTILE_TEXTS)
        )
        steps = [make_operation(step=n, failures={"timeout": n} if n else {}) for n in range(3)]
        store.add(
            [
                make_measurement(
                    retries=-(2**63), eff_job=sys.float_info.max, site="", operations=steps
                )
            ]
        )
        store.add_replicas([ReplicaRow("r", 1, "set", "h", "s", "d", "f", "root://", False, "")])
        store.replace_comparison(
            "c", [build_pair("c", 0.1), build_pair("c", 5e-324)], [build_verdict("c")]
        )
        store.replace_instruction_count(build_instruction_rows(label=HOSTILE_TEXTS[2]))
        sender = Sender("0123456789ab", HOSTILE_TEXTS[2], "127.0.0.1", 1)
        store.add(
            [make_measurement(job="sent", campaign_id="sent")],
            [Delivery(sender, "measurements", "sent", ["sent"])],
        )
        scope = ChangeScope(campaign_id="campaign", since_us=2**60)
        store.apply_change(
            DatabaseChange("quarantine", scope, "me@here", 1, HOSTILE_TEXTS[2], "all")
        )
        keyring = Keyring(store._engine)
        keyring.create_key(b"master", "read", HOSTILE_TEXTS[2], now_us=1)
        keyring.revoke_tokens("job", "a", now_us=2)
        grant = AccessGrant("read", "0123456789ab", HOSTILE_TEXTS[2], "")
        SessionTable(store._engine).open_session(
            grant, address="127.0.0.1", now_us=1, expires_us=2**60
        )
        _fill_empty_tables(store)


def _fill_empty_tables(store: Store) -> None:
    """Insert one row into each table that is still empty, after those that it refers to."""
    with store._engine.begin() as connection:
        for table in metadata.sorted_tables:
            if connection.scalar(sa.select(sa.func.count()).select_from(table)):
                continue
            row = {column.key: _make_value(column) for column in table.columns}
            connection.execute(sa.insert(table).values(row))


def _make_value(column: sa.Column[Any]) -> Any:
    if isinstance(column.type, DocumentText):
        return column.type.kind()
    kind = getattr(column.type, "impl", column.type)
    if isinstance(kind, sa.Float):
        return 5e-324
    if isinstance(kind, sa.Boolean):
        return True
    if isinstance(kind, sa.Integer):
        return 1
    return "x" if (getattr(kind, "length", None) or 4000) < 4000 else HOSTILE_TEXTS[2]


def read_all_tables(url: str) -> dict[str, list[Any]]:
    """Read all rows of all tables."""
    with Store.open(url, create=False) as store, store._engine.connect() as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key))
            ]
            for table in metadata.sorted_tables
        }


def write_export(
    store: Store, target: Path, selection: Selection = EVERYTHING, software: Path | None = None
) -> Path:
    """Write an export."""
    export_file(store, selection, target, software_dir=software or Path())
    return target


def import_file(store: Store, *paths: Path, **options: bool) -> list[ImportResult]:
    """Import files into a store."""
    choice: dict[str, Any] = {"ignore_unknown": False, "dry_run": False, **options}
    return import_files(store, list_files(paths), bars=no_progress, **choice)


def import_counts(results: Sequence[ImportResult]) -> list[tuple[int, int, int, int]]:
    return [(each.new, each.duplicates, each.conflicts, each.invalid) for each in results]


def read_contents(
    store: Store,
) -> tuple[list[dict[str, Value]], list[ExtraRow], list[dict[str, Value]]]:
    """Read all measurements, test-defined metrics and operations."""
    with store.snapshot() as snapshot:
        operations = [*snapshot.operations(EVERYTHING)]
    rows = [dict(row) for row in store.measurements(EVERYTHING)]
    return rows, [*store.extras(EVERYTHING)], operations


def read_table(store: Store, table: sa.Table) -> list[dict[str, Any]]:
    """Read all rows of a table by primary key."""
    query = sa.select(table).order_by(*table.primary_key)
    with store.connection() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def find_rollup_differences(store: Store) -> list[str]:
    """Return the tables of roll-ups that a rebuild changes, apart from rounding."""
    tables = (rollup_day, rollup_operation)
    before = [read_table(store, table) for table in tables]
    store.rebuild_rollups()
    return [
        table.name
        for table, rows in zip(tables, before, strict=True)
        if not _are_close(rows, read_table(store, table))
    ]


def _are_close(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> bool:
    return len(first) == len(second) and all(
        math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-12)
        if isinstance(value, float)
        else value == other[name]
        for row, other in zip(first, second, strict=True)
        for name, value in row.items()
    )


def awkward_measurements() -> Iterator[Measurement]:
    """Yield measurements with values that a file format might alter, as a store judges them."""
    yield from map(judge_again, _awkward_measurements())


def _awkward_measurements() -> Iterator[Measurement]:
    numbers = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    for place, text in enumerate(HOSTILE_TEXTS):
        extras = {"hits": place / 3} if place % 2 else {"e": place}
        yield make_measurement(job=f"hostile {place}", host=text, log_excerpt=text, extras=extras)
    for place, number in enumerate(numbers):
        yield make_measurement(
            job="numbers", position=place + 1, retries=number, eff_job=number / 7,
            read_latency_hist=numbers[2:], pass_loop_wall_s=[5e-324, -0.25], plausible=bool(place % 2),
            implausible_reasons=None if place % 2 else "no", failure_transient=bool(place % 2),
        )  # fmt: skip
    yield make_measurement(job="empty", read_latency_hist=[], pass_loop_wall_s=[], test_name="")
    yield make_measurement(job="marked", plausible=False, implausible_reasons="a; bad replica: b")
    yield make_measurement(job="elsewhere", campaign_id="odd id/é=%", site="far")
    yield from load_measurements()
    yield from (full_measurement(n) for n in range(5))


def load_measurements() -> Iterator[Measurement]:
    """Yield measurements of load tests, among them one without operations."""
    random = Random(16)
    for number in range(4):
        steps = random_operations(random) if number else []
        named = make_operation(
            [], {"refused": 1}, operation="vector_read", server=HOSTILE_TEXTS[2], step=number
        )
        yield make_measurement(job=f"load {number}", operations=[*steps, named] if number else ())


def build_finding(id_: str, **changes: Any) -> ReplicaRow:
    row = ReplicaRow(
        id_, 5, "d", "hash", "far", "door", "file", "root://x//y", False, "it is short"
    )
    return replace(row, **changes)


WriteExport = Callable[..., int]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('copy')}/source.db"
    fill_database(url)
    return url


@pytest.fixture
def write(store: Store, tmp_path: Path) -> WriteExport:
    def run(
        target: Path,
        selection: Selection = Selection(),  # noqa: B008
        step: ProgressCallback = lambda _done, _note="": None,
    ) -> int:
        return export_file(
            store,
            selection,
            target,
            software_dir=tmp_path / "software",
            bars=lambda _description, _total: nullcontext(step),
        )

    return run


@pytest.fixture
def export_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(arrow_stream, "BATCH_ROWS", 3)
    store.add(
        [
            *(full_measurement(n) for n in range(5)),
            make_measurement(job="a", extras={"hits": 2.5, "e": 1}),
            make_measurement(job="b", host='"a", b\nc', extras={"hits": -0.125}),
            make_measurement(job="c", retries=-(2**63), bytes_read=2**63 - 1, read_latency_hist=[]),
        ]
    )
    return store


@dataclass(frozen=True)
class ExportedStore:
    """Database of another installation and its export, a Parquet file."""

    database: Path
    file: Path


@pytest.fixture(scope="session")
def exported_store(tmp_path_factory: pytest.TempPathFactory) -> ExportedStore:
    """Create another installation with rows of every kind; copy its files before changing them."""
    base = tmp_path_factory.mktemp("others")
    exported = ExportedStore(base / "others.db", base / "theirs.parquet")
    with (
        pytest.MonkeyPatch.context() as patch,
        Store.open(f"sqlite:///{exported.database}") as store,
    ):
        patch.setattr(arrow_stream, "BATCH_ROWS", 7)
        store.add(awkward_measurements())
        jobs = [make_job_row("done", state="done"), make_job_row("runs", state="running")]
        store.add_campaign(make_campaign_row(), jobs)
        store.add_campaign(
            make_campaign_row("unmeasured", plan=json.dumps({"other": ["value"] * 500})), []
        )
        store.set_attempts(
            [
                AttemptRow("done", 1, "lost", 5, 9, None, "lost", "the node went away"),
                AttemptRow("done", 2, "done", 10, 20, 0, "", ""),
                AttemptRow("runs", 1, "running", 5, 0, None, "", ""),
            ]
        )
        store.add_replicas(
            [build_finding("bad", good=False), build_finding("good", good=True, found_us=9)]
        )
        export_file(store, EVERYTHING, exported.file, software_dir=Path())
    return exported


@pytest.fixture
def other_store(
    exported_store: ExportedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """Open a copy of the other installation's database, with small batches."""
    monkeypatch.setattr(arrow_stream, "BATCH_ROWS", 7)
    monkeypatch.setattr(measurement_files, "NESTED_READ_ROWS", 7)
    shutil.copy(exported_store.database, tmp_path / "others.db")
    with Store.open(f"sqlite:///{tmp_path}/others.db") as opened:
        yield opened


@contextmanager
def opened_plainly(url: str) -> Iterator[sa.Engine]:
    """Provide the engine of a database without a look at its schema."""
    engine = make_engine(parse_url(url))
    try:
        yield engine
    finally:
        engine.dispose()


def describe_schema(engine: sa.Engine) -> dict[str, object]:
    """Reflect the schema of a database, ignoring the order of columns."""
    inspector = sa.inspect(engine)
    return {
        table: (
            {c["name"]: (str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)},
            inspector.get_pk_constraint(table),
            sorted(inspector.get_foreign_keys(table), key=lambda key: str(key["name"])),
            sorted(inspector.get_indexes(table), key=lambda index: str(index["name"])),
        )
        for table in inspector.get_table_names()
    }


def kill_during(action: Callable[[], object], delay_s: float) -> None:
    """Run an action in a process of its own, and kill it with its programs after a delay."""
    child = os.fork()
    if not child:
        os.setsid()
        with suppress(BaseException):
            action()
        os._exit(0)
    time.sleep(delay_s)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it had no group of its own yet
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
