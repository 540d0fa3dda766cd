"""Promises of the store on every database."""

from __future__ import annotations

import re
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import (
    HOSTILE_TEXTS,
    build_instruction_rows,
    build_pair,
    build_verdict,
    full_measurement,
    make_campaign_row,
    make_job_row,
    make_measurement,
)
from quick_databases import NEXT_REVISION, next_revision, run_migrations  # noqa: F401 - a fixture
from store_helpers import describe_schema, find_rollup_differences, opened_plainly, read_rows

import treehammer
from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_LONG_TEXT, MAX_TEXT
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.core import schema
from treehammer.sql.core.rows import AttemptRow, ExtraRow, ReplicaRow
from treehammer.sql.engine import backend as engine_backend
from treehammer.sql.engine.database_engine import (
    QueryGroup,
    alter_transaction,
    is_cancelled,
    read_transaction,
    write_transaction,
)
from treehammer.sql.engine.database_setup import (
    REVISION,
    SchemaState,
    load_schema_state,
    open_engine,
    upgrade_database,
)
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.audit_trail import MEASUREMENTS, Delivery, Sender
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, AddResult
from treehammer.sql.write.store import CampaignUpload, Store, UploadResult

EVERYTHING = Selection()


# Measurements


def test_all_columns_round_trip(store: Store) -> None:
    given = full_measurement(3)
    store.add([given])
    (row,) = store.measurements(EVERYTHING)
    assert row == dict(given.values)
    assert [type(row[m.name]) for m in CATALOGUE] == [type(given.values[m.name]) for m in CATALOGUE]


def test_missing_values_are_none(store: Store) -> None:
    given = make_measurement()
    store.add([given])
    (row,) = store.measurements(EVERYTHING)
    filled = {name: value for name, value in row.items() if value is not None}
    assert filled == {**given.values, "storage_site": given.values["site"]}


def test_equivalent_spellings_are_no_conflict(store: Store) -> None:
    store.add([make_measurement(axis_cache_mb=30, ref="", pass_loop_wall_s=[1, 2])])
    changed = make_measurement(axis_cache_mb=30.0, pass_loop_wall_s=[1.0, 2.0])
    assert store.add([changed]) == AddResult(0, 1)


@pytest.mark.parametrize("other", [{"site": "elsewhere"}, {"extras": {"hits": 2}}])
def test_conflict_is_reported_and_changes_nothing(store: Store, other: dict[str, Any]) -> None:
    first = make_measurement(extras={"hits": 1})
    store.add([first])
    before = read_rows(store)
    second = make_measurement(**{"extras": {"hits": 1}, **other})
    assert store.add([second]) == AddResult(0, 0, (first.id,))
    assert read_rows(store) == before
    assert list(store.extras(EVERYTHING)) == [ExtraRow(first.id, "hits", 1.0)]


def _build_finding(at: int, good: bool, **changes: Any) -> ReplicaRow:
    values: dict[str, Any] = {
        "id": f"{at}{changes}",
        "found_us": at,
        "dataset": "set",
        "dataset_hash": "h",
        "site": "local",
        "door": "d",
        "file": "f.root",
        "url": "root://h//f.root",
        "good": good,
        "message": "" if good else "has adler32 1, not 2",
    }
    return ReplicaRow(**{**values, **changes})


def _flagged_rows(store: Store) -> dict[int, str]:
    rows = store.measurements(Selection(), ["started_us", "implausible_reasons", "plausible"])
    by_time = {int(str(row["started_us"])): row for row in rows}
    assert all(row["plausible"] is (row["implausible_reasons"] is None) for row in by_time.values())
    return {at: str(row["implausible_reasons"] or "") for at, row in by_time.items()}


def test_reads_of_bad_replica_are_flagged(store: Store) -> None:
    base: dict[str, Any] = {"dataset_hash": "h", "site": "local", "door": "d", "plausible": True}
    read = [make_measurement(f"j{at}", started_us=at, **base) for at in (10, 20, 30, 40, 50)]
    other = make_measurement("other", started_us=25, **{**base, "door": "e"})
    doubtful = make_measurement(
        "why", started_us=22, **{**base, "plausible": False}, implausible_reasons="x"
    )
    # This looks like a flag but is none.
    odd = make_measurement(
        "odd", started_us=23, **{**base, "plausible": False}, implausible_reasons="Bad Replica: x; "
    )
    store.add([*read, other, doubtful, odd])
    assert store.mark_bad_replicas() == 0
    store.add_replicas(
        [_build_finding(15, True), _build_finding(35, False), _build_finding(36, False)]
    )
    assert store.mark_bad_replicas() == 6
    reason = "bad replica: has adler32 1, not 2"
    assert _flagged_rows(store) == {
        10: "",
        20: reason,
        22: f"x; {reason}",
        23: f"Bad Replica: x; ; {reason}",
        25: "",
        30: reason,
        40: reason,
        50: reason,
    }
    assert store.mark_bad_replicas() == 0
    # Later measurements are flagged as well, until the replica is good again.
    store.add_replicas([_build_finding(55, True), _build_finding(55, False, dataset_hash="else")])
    late = [make_measurement(f"j{at}", started_us=at, **base) for at in (45, 60)]
    store.add(late)
    assert store.mark_bad_replicas() == 1
    assert _flagged_rows(store)[45] == reason
    assert _flagged_rows(store)[60] == ""
    # A flagged measurement that is added again is still known.
    assert store.add([*read, doubtful, odd, *late]) == AddResult(0, 9)


def test_never_good_replica_flags_all_reads(store: Store) -> None:
    store.add([make_measurement(started_us=1, dataset_hash="h", door="d", plausible=True)])
    store.add_replicas([_build_finding(35, False)])
    store.add_replicas([_build_finding(35, False)])
    assert store.mark_bad_replicas() == 1


@pytest.mark.parametrize("length", [3, 3990, 5000])
def test_flag_keeps_earlier_implausibility(store: Store, length: int) -> None:
    base: dict[str, Any] = {"dataset_hash": "h", "door": "d", "started_us": 1}
    whys = [None, "y", "y" * 5000, "y" * MAX_LONG_TEXT]
    given = [
        make_measurement(position=place, plausible=why is None, implausible_reasons=why, **base)
        for place, why in enumerate(whys, 1)
    ]
    store.add(given)
    store.add_replicas([_build_finding(35, False, id="bad", message="z" * length)])
    assert store.mark_bad_replicas() == 4
    assert store.mark_bad_replicas() == 0
    reasons = [str(read_rows(store)[item.id]["implausible_reasons"]) for item in given]
    mark = f"bad replica: {'z' * length}"[:MAX_TEXT]
    assert reasons[:3] == [mark, f"y; {mark}", f"{'y' * 5000}; {mark}"]
    assert reasons[3].endswith(f"y; {mark}")
    assert len(reasons[3]) == MAX_LONG_TEXT
    assert len(store.replicas()[0].message) == min(length, MAX_TEXT)
    # A flagged measurement that is added again is still known.
    assert store.add(given[:3]) == AddResult(0, 3)


def test_batches_of_one_transaction_see_each_other(store: Store) -> None:
    rows = [make_measurement(job=f"job {n}", plausible=True) for n in range(BATCH_MEASUREMENTS)]
    flag = "bad replica: torn"
    flagged = make_measurement(job="job 0", plausible=False, implausible_reasons=flag)
    other = make_measurement(job="job 2", plausible=True, host="elsewhere")
    added = store.add([*rows, rows[1], flagged, other])
    assert added == AddResult(BATCH_MEASUREMENTS, 2, (other.id,))
    marked = {
        row["job_id"]: row["implausible_reasons"]
        for row in store.measurements(EVERYTHING, ["job_id", "plausible", "implausible_reasons"])
        if not row["plausible"]
    }
    assert marked == {"job 0": flag}
    assert not find_rollup_differences(store)


def test_values_at_the_limits_round_trip(store: Store) -> None:
    whole = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    real = [5e-324, -0.0, 0.1, sys.float_info.max, -sys.float_info.max]
    limits: list[dict[str, Any]] = [
        *({"host": text, "log_excerpt": text} for text in HOSTILE_TEXTS),
        *({"retries": i, "eff_job": x} for i, x in zip(whole, real, strict=True)),
        {"read_latency_hist": [0, 2**53 + 1, 2**63 - 1], "pass_loop_wall_s": real},
        {"read_latency_hist": [], "pass_loop_wall_s": None},
    ]
    store.add(make_measurement(position=p, **values) for p, values in enumerate(limits, 1))
    for row, values in zip(store.measurements(EVERYTHING), limits, strict=True):
        assert {name: row[name] for name in values} == values


def test_rows_are_in_execution_order(store: Store) -> None:
    places = [("b", 1, 1), ("a", 2, 1), ("a", 1, 2), ("a", 1, 1)]
    store.add(make_measurement(job=j, round_=r, position=p, extras={"e": p}) for j, r, p in places)
    rows = list(store.measurements(EVERYTHING, ["job_id", "round", "position", "measurement_id"]))
    assert [(r["job_id"], r["round"], r["position"]) for r in rows] == sorted(places)
    assert [e.measurement_id for e in store.extras(EVERYTHING)] == [
        r["measurement_id"] for r in rows
    ]


def test_rows_sort_by_code_points(store: Store) -> None:
    jobs = ["b", "a", "B", "_", "é", "Z"]
    store.add(make_measurement(job=job) for job in jobs)
    rows = store.measurements(EVERYTHING, ["job_id"])
    assert [row["job_id"] for row in rows] == sorted(jobs)


def test_snapshot_is_stable(store: Store) -> None:
    store.add([make_measurement(position=1)])
    with store.snapshot() as snapshot:
        assert len(list(snapshot.measurements(EVERYTHING))) == 1
        store.add([make_measurement(position=2)])
        assert len(list(snapshot.measurements(EVERYTHING))) == 1
        assert len(list(snapshot.measurements(EVERYTHING))) == 1
    assert len(read_rows(store)) == 2


# Campaigns, jobs, attempts, comparisons


def test_campaign_add_is_idempotent(store: Store) -> None:
    store.add_campaign(make_campaign_row(), [make_job_row("a")])
    store.set_jobs([make_job_row("a", state="done")])
    store.add_campaign(make_campaign_row(name="renamed"), [make_job_row("a"), make_job_row("b")])
    assert store.campaigns() == [make_campaign_row()]
    assert store.jobs("campaign") == [make_job_row("a", state="done"), make_job_row("b")]
    assert store.jobs("other") == []


def test_recount_replaces_the_rows_of_a_count(store: Store) -> None:
    other_rows = build_instruction_rows("other", test_hash="u")
    store.add_instruction_counts(other_rows)
    store.replace_instruction_count(build_instruction_rows("n", lines=1200))
    recounted = build_instruction_rows("n", lines=3, instructions=7)
    for _ in range(2):
        store.replace_instruction_count(recounted)
        assert store.instruction_counts() == [*recounted, *other_rows]
    assert store.instruction_counts(["u"]) == other_rows
    assert store.instruction_counts([]) == []
    store.add_instruction_counts(build_instruction_rows("n", lines=3, instructions=8))
    assert store.instruction_counts(["t"]) == recounted


SENDER = Sender("0123456789ab", "alice", "127.0.0.1", 1)


def test_last_duplicate_row_wins(store: Store) -> None:
    store.add_campaign(make_campaign_row(), [])
    store.set_jobs([make_job_row("a", state="queued"), make_job_row("a", state="running")])
    assert [job.state for job in store.jobs("campaign")] == ["running"]


def test_uploaded_campaign(store: Store) -> None:
    jobs = [make_job_row(f"job {n}", state="running") for n in range(1100)]
    first = [AttemptRow(job.id, 1, "running", 5, 0, None, "", "") for job in jobs]
    finding = ReplicaRow("f", 5, "set", "hash", "A", "door", "file", "root://", False, "torn")
    handed = CampaignUpload(make_campaign_row(), jobs, first, [finding])
    assert store.apply_upload(handed, SENDER) == UploadResult(2202, 0, 0)
    assert store.apply_upload(handed, SENDER) == UploadResult(0, 0, 2202)
    stored = store.jobs("campaign")
    assert all(job.is_external for job in stored)
    assert [replace(j, batch_system=jobs[0].batch_system) for j in stored] == sorted(
        jobs, key=lambda job: job.id
    )
    ended = replace(first[1], state="lost", ended_us=9, failure_class="lost", message="gone")
    second = AttemptRow("job 1", 2, "done", 10, 20, 0, "", "")
    news = CampaignUpload(make_campaign_row(), [replace(jobs[1], state="done")], [ended, second])
    assert store.apply_upload(news, SENDER) == UploadResult(1, 2, 1)
    assert store.apply_upload(
        CampaignUpload(make_campaign_row(), jobs[1:2], first[1:2]), SENDER
    ) == UploadResult(0, 0, 3)
    assert store.attempts(["job 1"]) == [ended, second]
    requeued = CampaignUpload(make_campaign_row(), [replace(jobs[1], state="queued", batch_id="2")])
    assert store.apply_upload(requeued, SENDER) == UploadResult(0, 1, 1)
    assert (store.campaigns(), store.replicas()) == (
        [make_campaign_row()],
        [replace(finding, owner="alice")],
    )


def test_attempts_are_updated(store: Store) -> None:
    store.add_campaign(make_campaign_row(), [make_job_row(f"job {n}") for n in range(1100)])
    first = AttemptRow("job 1", 1, "running", 5, 0, None, "", "")
    store.set_attempts([first])
    ended = AttemptRow("job 1", 1, "lost", 5, 9, 137, "lost", "the node went away")
    second = AttemptRow("job 1", 2, "done", 10, 20, 0, "", "")
    store.set_attempts([ended, second])
    assert store.attempts(f"job {n}" for n in range(1100)) == [ended, second]
    assert store.attempts([]) == []


def test_campaign_is_found_by_a_part_of_its_identity_or_name(store: Store) -> None:
    with pytest.raises(NothingToDoError):
        store.campaign("last")
    for place, id_ in enumerate(("aa11", "bb22", "aa33")):
        store.add_campaign(make_campaign_row(id_, created_us=place), [])
    for reference in ("bb22", "name of bb22", "bb", "name of bb"):
        assert store.campaign(reference).id == "bb22"
    assert store.campaign("last").id == "aa33"
    for reference in ("aa", "zz", "", "%"):
        with pytest.raises(ConfigError, match="aa11"):
            store.campaign(reference)


def test_comparison_replaces_only_itself(store: Store) -> None:
    store.replace_comparison("one", [build_pair("one", 0.1)], [build_verdict("one")])
    store.replace_comparison("two", [build_pair("two", 0.2)], [build_verdict("two")])
    pairs = [build_pair("one", 0.3), build_pair("one", 0.2)]
    verdicts = [
        build_verdict("one", effect=0.25, jobs_needed=4),
        build_verdict("one", scope="site"),
    ]
    store.replace_comparison("one", pairs, verdicts)
    assert store.pairs("one") == pairs
    assert store.verdicts("one") == verdicts
    assert store.pairs("two") == [build_pair("two", 0.2)]
    assert store.verdicts("three") == []


# Opening, and concurrent access


def test_incomplete_schema_is_reported(url: str, store: Store) -> None:
    store.add([make_measurement()])
    (index,) = schema.rollup_day.indexes
    with alter_transaction(store._engine) as connection:
        connection.execute(sa.schema.DropIndex(index))
    with pytest.raises(StoreError, match=r"lacks index ix_rollup_day_subject\n.*db upgrade"):
        check_database(url)
    upgrade_database(url)
    assert check_database(url)["measurement"] == 1
    with alter_transaction(store._engine) as connection:
        connection.exec_driver_sql("ALTER TABLE job DROP COLUMN label")
        connection.execute(sa.schema.DropTable(schema.replica))
    for act in (check_database, upgrade_database):
        with pytest.raises(StoreError, match=r"lacks table replica, column job\.label\n.*backup"):
            act(url)
    with pytest.raises(StoreError, match="Run: treehammer db check"):
        store.replicas()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("read_latency_hist", '{"a": 1}'),
        ("passes", b"\x01rubbish"),
        ("passes", b"\x01" + zlib.compress(struct.pack("<3id", 2, 1, 1, 0.5))),
    ],
)
def test_corrupt_value_is_reported(url: str, store: Store, column: str, value: str | bytes) -> None:
    rows = [full_measurement(1), full_measurement(2), make_measurement()]
    store.add(rows)
    id_ = str(rows[0].values["measurement_id"])
    kind = sa.Text() if isinstance(value, str) else sa.LargeBinary()
    change = sa.update(schema.measurement).values({column: sa.literal(value, kind)})
    with write_transaction(store._engine) as connection:
        connection.execute(change.where(schema.measurement.c.measurement_id == id_))
    readers: list[Callable[[], object]] = [lambda: read_rows(store)]
    if value in ('{"a": 1}', b"\x01rubbish"):
        readers.append(lambda: treehammer.results(database=url))
    if column == "read_latency_hist":
        readers.append(store.rebuild_rollups)
    for read in readers:
        with pytest.raises(StoreError, match=r"(damaged|does not know)(.|\n)*treehammer db check"):
            read()
    with pytest.raises(StoreError, match=rf"{column} of 1 measurement.*damaged: {id_}\n") as caught:
        check_database(url)
    # The remedy in the message works.
    (statement,) = re.findall("UPDATE .*(?=;)", str(caught.value))
    with write_transaction(store._engine) as connection:
        connection.exec_driver_sql(statement)
    store.rebuild_rollups()
    assert check_database(url)["measurement"] == 3
    assert len(read_rows(store)) == 3


def add_in_batches(url: str) -> tuple[int, int]:
    new = duplicates = 0
    with Store.open(url) as store:
        for start in range(0, 60, 5):
            added = store.add(
                make_measurement(job=f"job {n}", extras={"n": n}) for n in range(start, start + 5)
            )
            new, duplicates = new + added.new, duplicates + added.duplicates
    return new, duplicates


def test_concurrent_creation_and_writes(url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(add_in_batches, [url, url]))
    assert [sum(column) for column in zip(*counts, strict=True)] == [60, 60]
    assert check_database(url)["extra"] == 60


def test_only_writers_wait_for_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_backend, "BUSY_SECONDS", 0.1)
    with Store.open(url) as store, Store.open(url) as other:
        store.add([make_measurement()])
        with write_transaction(other._engine):
            with pytest.raises(StoreError, match="another process"):
                store.add([make_measurement(position=2)])
            assert len(read_rows(store)) == 1
        assert store.add([make_measurement(position=2)]).new == 1


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT 1 FROM c) SELECT count(*) FROM c"
PATIENCE_S = 60.0


@pytest.mark.backends("sqlite", "postgresql")
def test_cancelled_query_ends_and_others_go_on(url: str) -> None:
    engine = open_engine(url, create=True)
    group = QueryGroup()
    began = threading.Event()
    failures: list[StoreError] = []

    def run_endless_query() -> None:
        with read_transaction(engine) as connection:
            connection.scalar(sa.text("SELECT 1"))
            began.set()
            connection.exec_driver_sql(ENDLESS)

    def run_group() -> None:
        try:
            group.run(run_endless_query)
        except StoreError as error:
            failures.append(error)

    thread = threading.Thread(target=run_group, daemon=True)
    thread.start()
    assert began.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while thread.is_alive():
        assert time.monotonic() < deadline
        group.cancel()
        thread.join(0.05)
    assert failures
    with pytest.raises(StoreError, match="cancelled"):
        group.run(run_endless_query)
    assert not is_cancelled()
    with read_transaction(engine) as connection:
        assert connection.scalar(sa.text("SELECT 2")) == 2
    engine.dispose()


# Schema


@pytest.mark.backends("sqlite", "postgresql")
def test_migrations_give_the_schema(url: str) -> None:
    from alembic.autogenerate import compare_metadata  # collecting needs no Alembic
    from alembic.migration import MigrationContext

    schemas = []
    with opened_plainly(url) as engine:
        for create in (run_migrations, lambda url: Store.open(url).close()):
            create(url)
            assert load_schema_state(engine) is SchemaState.CURRENT
            with engine.connect() as connection:
                context = MigrationContext.configure(connection, opts={"compare_type": True})
                assert compare_metadata(context, schema.metadata) == []
            schemas.append(describe_schema(engine))
            with alter_transaction(engine) as connection:
                schema.metadata.drop_all(connection)
                _REVISION_TABLE.drop(connection)
    assert schemas[0] == schemas[1]


@pytest.mark.backends("sqlite", "postgresql")
def test_failed_upgrade_changes_nothing(
    url: str, store: Store, request: pytest.FixtureRequest
) -> None:
    store.add([make_measurement(extras={"hits": 1})])
    before = read_rows(store)
    revision = request.getfixturevalue("next_revision")
    revision.write_text(NEXT_REVISION + '    op.execute("SELECT * FROM no_such_table")\n')
    for act in (Store.open, check_database):
        with pytest.raises(StoreError, match=r"treehammer db upgrade \(it backs up SQLite"):
            act(url)
    for _ in range(2):  # each has a backup, also within one second
        with pytest.raises(StoreError, match="no_such_table"):
            upgrade_database(url)
    assert "later" not in list_columns(store)
    revision.write_text(NEXT_REVISION)
    upgrade_database(url)
    assert "later" in list_columns(store)
    assert check_database(url)["measurement"] == 1
    assert read_rows(store) == before


def list_columns(store: Store) -> list[str]:
    return [column["name"] for column in sa.inspect(store._engine).get_columns("measurement")]


# Databases with existing content


_REVISION_TABLE = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32))
)
_FOREIGN_METADATA = sa.MetaData()
_FOREIGN_JOB_TABLE = sa.Table(
    "job", _FOREIGN_METADATA, sa.Column("what", sa.String(9), primary_key=True)
)
_FOREIGN_RECIPES_TABLE = sa.Table(
    "recipes", _FOREIGN_METADATA, sa.Column("cake", sa.String(9), primary_key=True)
)


@pytest.mark.parametrize("whole", [True, False])
def test_database_without_revision_is_refused(url: str, whole: bool) -> None:
    """Restoring a backup leaves such a state until it is complete."""
    with Store.open(url) as store:
        store.add([make_measurement()])
    with raw_connection(url) as connection:
        if whole:
            _REVISION_TABLE.drop(connection)
        else:
            connection.execute(sa.delete(_REVISION_TABLE))
    for act in (Store.open, upgrade_database, check_database):
        with pytest.raises(
            StoreError, match=r"not the revision that they are at(.|\n)*restore all"
        ):
            act(url)
    with raw_connection(url) as connection:
        if whole:
            _REVISION_TABLE.create(connection)
        connection.execute(sa.insert(_REVISION_TABLE).values(version_num=REVISION))
    assert check_database(url)["measurement"] == 1


def test_foreign_tables_are_left_alone(url: str) -> None:
    """This includes a foreign table with the name of one of Treehammer's."""
    with raw_connection(url) as connection:
        _FOREIGN_JOB_TABLE.create(connection)
        connection.execute(sa.insert(_FOREIGN_JOB_TABLE).values(what="bakes"))
    for act in (Store.open, upgrade_database):
        with pytest.raises(StoreError, match="not the revision"):
            act(url)
    for revision in ("", "cf5dc11e79ad"):  # of another application that uses Alembic
        with raw_connection(url) as connection:
            _FOREIGN_RECIPES_TABLE.create(connection, checkfirst=True)
            if revision:
                _REVISION_TABLE.create(connection)
                connection.execute(sa.insert(_REVISION_TABLE).values(version_num=revision))
        for act in (Store.open, upgrade_database):
            with pytest.raises(StoreError, match="other than Treehammer"):
                act(url)
    with raw_connection(url) as connection:
        assert connection.scalar(sa.select(_FOREIGN_JOB_TABLE.c.what)) == "bakes"


@contextmanager
def raw_connection(url: str) -> Iterator[sa.Connection]:
    """Connect directly, for changes that Treehammer never makes."""
    with opened_plainly(url) as engine, alter_transaction(engine) as connection:
        yield connection


def test_storage_site_defaults_to_site(store: Store) -> None:
    """Records without it equal those with it, and share their subject."""
    old, new = make_measurement(site="A"), make_measurement(site="A", storage_site="A")
    assert store.add([old]) == AddResult(1, 0)
    assert store.add([new, make_measurement(position=2, site="A", storage_site="A")]) == (
        AddResult(1, 1)
    )
    store.add([make_measurement(position=3, site="A", storage_site="B")])
    selection = Selection.parse(wheres=["storage_site=A"])
    assert len([*store.measurements(selection)]) == 2
    with store.connection() as connection:
        assert (
            connection.scalar(
                sa.select(sa.func.count()).select_from(schema.dimension_tables["subject"])
            )
            == 2
        )


def test_queries_of_a_page_see_one_state(url: str, store: Store) -> None:
    store.add_campaign(make_campaign_row("before"), [])
    with Store.open(url) as other:
        with other.one_state():
            assert [campaign.id for campaign in other.campaigns()] == ["before"]
            store.add_campaign(make_campaign_row("after"), [])
            assert [campaign.id for campaign in other.campaigns()] == ["before"]
            with pytest.raises(StoreError), other.connection() as connection:
                connection.execute(sa.text("SELECT * FROM no_such_table"))
        assert {campaign.id for campaign in other.campaigns()} == {"before", "after"}


IMPLAUSIBLE_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"cpu_per_event_s": -9.2e18}, "cpu_per_event_s is -9.2e+18, possible are 0 to 1e+06"),
    ({"bytes_read": -1}, "bytes_read is -1, possible are 0 to 1e+18"),
    ({"events_read": 0}, "zero: events_read"),
    ({"ended_us": 0}, "it ended before it started"),
]


def test_sender_is_not_believed_that_its_values_are_plausible(store: Store) -> None:
    sent = [
        make_measurement(position=position, plausible=True, **change)
        for position, (change, _) in enumerate(IMPLAUSIBLE_VALUES, 1)
    ]
    assert store.add(sent).new == len(sent)
    for row, (change, reason) in zip(
        store.measurements(EVERYTHING), IMPLAUSIBLE_VALUES, strict=True
    ):
        assert (row["plausible"], row["implausible_reasons"]) == (False, reason)
        assert {name: row[name] for name in change} == change, "raw values are kept"
    assert store.add(sent) == AddResult(0, len(sent))
    change, reason = IMPLAUSIBLE_VALUES[0]
    store.add([make_measurement("b", plausible=False, implausible_reasons="own", **change)])
    (other,) = store.measurements(Selection.parse([], ["job_id=b"]))
    assert other["implausible_reasons"] == f"own; {reason}"


@pytest.mark.parametrize("liar_first", [True, False])
def test_one_sender_does_not_move_the_means_of_a_series(store: Store, liar_first: bool) -> None:
    honest = [make_measurement(job=f"h{n}", cpu_per_event_s=1e-4 + n * 1e-6) for n in range(8)]
    liars = [make_measurement(job="liar", cpu_per_event_s=9e5)]
    for batch in (liars, honest) if liar_first else (honest, liars):
        store.add(batch)
    rows = list(store.measurements(EVERYTHING))
    false = [row for row in rows if not row["plausible"]]
    assert [row["job_id"] for row in false] == ["liar"]
    assert false[0]["cpu_per_event_s"] == 9e5, "the raw value is kept"
    assert str(false[0]["implausible_reasons"]).startswith("outlier: cpu_per_event_s")
    assert not find_rollup_differences(store)
    assert store.add(liars).conflicting == (), "it can be sent again"


HONEST_S = 1e-3
#: Ways of six senders to move the mean of a series: numbers of their values.
HOSTILE_VALUES: dict[str, list[float]] = {
    "many large values": [900.0] * 12,
    "small values": [1e-9] * 12,
    "one large value": [9e5],
    "half of its values": [HONEST_S, 900.0] * 6,
    "more values than all others": [0.5] * 100,
    "just below the wide limit": [HONEST_S] * 7 + [HONEST_S * 99] * 5,
}


@pytest.mark.parametrize(
    ("name", "hostile_first"),
    [
        ("half of its values", True),
        ("more values than all others", True),
        ("just below the wide limit", True),
        ("all six", False),
    ],
)
def test_hostile_senders_do_not_move_the_mean_of_a_series(
    store: Store, name: str, hostile_first: bool
) -> None:
    """Three honest senders outvote one hostile sender, seven outvote six, whoever comes first."""
    hostile = HOSTILE_VALUES if name == "all six" else {name: HOSTILE_VALUES[name]}
    honest = {
        f"honest {number}": [HONEST_S * (1 + place / 1000) for place in range(6)]
        for number in range(7 if name == "all six" else 3)
    }
    senders = hostile | honest if hostile_first else honest | hostile
    for place, (sender, values) in enumerate(senders.items()):
        send_values(store, sender, values, received_us=place)
    rows = list(store.measurements(EVERYTHING))
    mean = fmean(float(str(row["cpu_per_event_s"])) for row in rows if row["plausible"])
    assert mean == pytest.approx(HONEST_S, rel=0.01)
    assert all(
        row["plausible"] or str(row["implausible_reasons"]).startswith("outlier: cpu_per_event_s")
        for row in rows
    )
    assert len(rows) == sum(map(len, senders.values())), "all values are kept"
    assert not [row for row in rows if row["job_id"] in honest and not row["plausible"]]
    assert not find_rollup_differences(store)


def test_of_two_senders_the_earlier_one_counts(store: Store) -> None:
    send_values(store, "early", [HONEST_S] * 6, received_us=1)
    known = make_measurement("early", campaign_id="early", cpu_per_event_s=HONEST_S)
    again = Sender("late", "early", "192.0.2.1", received_us=2)
    store.add([known], [Delivery(again, MEASUREMENTS, "early", ["early"])])
    send_values(store, "late", [900.0] * 30, received_us=3)
    for few in ("a", "b"):  # too few values for a vote
        send_values(store, few, [900.0], received_us=4)
    assert {row["job_id"] for row in store.measurements(EVERYTHING) if row["plausible"]} == {
        "early"
    }


def send_values(store: Store, sender: str, values: list[float], received_us: int) -> None:
    """Send measurements of one series with a key and a campaign of the sender's own."""
    measurements = [
        make_measurement(sender, place, campaign_id=sender, cpu_per_event_s=value)
        for place, value in enumerate(values, start=1)
    ]
    key = Sender(sender, sender, "192.0.2.1", received_us)
    jobs = [make_job_row(id=sender, campaign_id=sender)]
    store.apply_upload(CampaignUpload(make_campaign_row(id=sender), jobs, (), ()), key)
    store.add(measurements, [Delivery(key, MEASUREMENTS, sender, [sender])])


def test_change_of_a_series_is_no_outlier(store: Store) -> None:
    for times, first in ((1e-4, 0), (5e-2, 10)):
        store.add(make_measurement(job=f"j{first + n}", cpu_per_event_s=times) for n in range(10))
    assert all(row["plausible"] for row in store.measurements(EVERYTHING))
