"""Promises of imports into every database."""

from __future__ import annotations

import base64
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from measurement_factory import (
    STARTED_DAY,
    STARTED_US,
    build_instruction_rows,
    make_campaign_row,
    make_job_row,
    make_measurement,
)
from pyarrow import parquet
from store_helpers import (
    ExportedStore,
    awkward_measurements,
    build_finding,
    find_rollup_differences,
    import_counts,
    import_file,
    read_contents,
    write_export,
)

from treehammer.errors import MeasurementFileError
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_stream, file_writers, measurement_files
from treehammer.sql.transfer.importer import list_files
from treehammer.sql.write.store import Store

pytestmark = pytest.mark.backends("sqlite")

EVERYTHING = Selection()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Store]:
    """Open the empty store of another installation."""
    with Store.open(f"sqlite:///{tmp_path}/others.db") as opened:
        yield opened


# Round trips


@pytest.mark.backends("sqlite", "postgresql")
def test_export_import_round_trip(
    store: Store, other_store: Store, exported_store: ExportedStore
) -> None:
    file = exported_store.file
    rows = len([*awkward_measurements()])
    results = import_file(store, file, dry_run=True)
    assert sum(each.new for each in results) == rows
    assert sum(each.campaigns for each in results) == 2
    assert not [*store.measurements(EVERYTHING)]
    assert not store.campaigns()

    results = import_file(store, file)
    assert sum(each.new for each in results) == rows
    assert not any(
        each.problems or each.missing_columns or each.ignored_columns for each in results
    )
    assert read_contents(store) == read_contents(other_store)
    assert store.campaigns() == other_store.campaigns()
    assert store.jobs("campaign") == [make_job_row("done", state="done")], (
        "others follow what runs there"
    )
    assert store.attempts(["done", "runs"]) == other_store.attempts(["done"])
    assert store.replicas() == other_store.replicas()
    assert find_rollup_differences(store) == []

    assert all(each[0] == each[2] == 0 for each in import_counts(import_file(store, file)))
    assert read_contents(store) == read_contents(other_store)


@pytest.mark.backends("sqlite", "postgresql")
def test_instruction_counts_are_merged_whole(
    store: Store, other_store: Store, tmp_path: Path
) -> None:
    """A count that both stores hold stays as it is here: rows of two counts never mix."""
    own_rows = build_instruction_rows("both", lines=2)
    store.add_instruction_counts(own_rows)
    other_store.add([make_measurement(dataset_hash="d")])
    other_store.add_instruction_counts(build_instruction_rows("both", lines=4, instructions=1))
    other_rows = build_instruction_rows("theirs", lines=3)
    other_store.add_instruction_counts(other_rows)
    other_store.add_instruction_counts(build_instruction_rows("unread", dataset_hash="e"))
    file = write_export(other_store, tmp_path / "theirs.parquet")
    for _ in range(2):
        import_file(store, file)
        counts = store.instruction_counts()
        assert [row for row in counts if row.count_id != "unread"] == [*own_rows, *other_rows]


@pytest.mark.backends("sqlite", "postgresql")
def test_merge_creates_no_duplicates(
    store: Store, other_store: Store, exported_store: ExportedStore, tmp_path: Path
) -> None:
    store.add(make_measurement(job=f"text {n}", extras={"mine": n}) for n in (100, 101))
    store.add([*awkward_measurements()][:9])
    before = read_contents(store)
    other_file = exported_store.file
    own_file = write_export(store, tmp_path / "mine.parquet")
    rows = len([*awkward_measurements()])
    assert import_counts(import_file(store, other_file, dry_run=True)) == [(rows - 9, 9, 0, 0)]
    assert import_counts(import_file(store, other_file)) == [(rows - 9, 9, 0, 0)]
    assert import_counts(import_file(other_store, own_file)) == [(2, 9, 0, 0)]
    union = read_contents(store)
    assert union == read_contents(other_store)
    assert len(union[0]) > len(before[0])
    assert {row["job_id"] for row in store.measurements(EVERYTHING)} >= {"text 100", "marked"}


def test_same_file_imported_twice_is_added_once(
    store: Store, exported_store: ExportedStore, tmp_path: Path
) -> None:
    file = exported_store.file
    duplicate = Path(shutil.copy(file, tmp_path / "b.parquet"))
    rows = len([*awkward_measurements()])
    for dry_run in (True, False):
        results = import_file(store, file, duplicate, dry_run=dry_run)
        assert import_counts(results) == [(rows, 0, 0, 0), (0, rows, 0, 0)]
        assert [result.campaigns for result in results] == [2, 0]


def test_first_recorded_value_wins(store: Store, remote: Store, tmp_path: Path) -> None:
    remote.add([make_measurement(host="there"), make_measurement(job="same")])
    file = write_export(remote, tmp_path / "theirs.parquet")
    first = make_measurement(host="here")
    store.add([first, make_measurement(job="same")])
    for dry_run in (True, False):
        (result,) = import_file(store, file, dry_run=dry_run)
        assert import_counts([result]) == [(0, 1, 1, 0)]
        assert result.conflicting_ids == [first.id]
        assert f"{first.id} arrived with other content" in str(result.describe_remarks())
    assert [row["host"] for row in store.measurements(EVERYTHING)] == ["here", None]


def test_later_bad_replica_flags_earlier_measurements(
    store: Store, remote: Store, tmp_path: Path
) -> None:
    """The second file contains only known measurements."""
    read: dict[str, Any] = {"dataset_hash": "hash", "site": "far", "door": "door"}
    read |= {"started_us": STARTED_US + 3, "day": STARTED_DAY, "plausible": True}
    store.add([make_measurement(job="mine", **read)])
    remote.add([make_measurement(job="theirs", **read)])
    import_file(store, write_export(remote, tmp_path / "early.parquet"))
    remote.add_replicas([build_finding("bad", good=False, found_us=STARTED_US + 5)])
    late = write_export(remote, tmp_path / "late.parquet")
    import_file(store, late, dry_run=True)
    assert all(row["plausible"] for row in store.measurements(EVERYTHING))
    assert import_counts(import_file(store, late)) == [(0, 1, 0, 0)]
    assert [row["plausible"] for row in store.measurements(EVERYTHING)] == [False, False]
    assert find_rollup_differences(store) == []


@pytest.mark.backends("sqlite", "postgresql")
def test_import_updates_remote_jobs(store: Store, remote: Store, tmp_path: Path) -> None:
    lost = AttemptRow("job", 1, "lost", 5, 9, None, "lost", "the node went away")
    done = AttemptRow("job", 2, "done", 10, 20, 0, "", "")
    remote.add([make_measurement()])
    remote.add_campaign(make_campaign_row(), [make_job_row(state="lost")])
    remote.set_attempts([lost])
    early = write_export(remote, tmp_path / "early.parquet")
    remote.set_jobs([make_job_row(state="done")])
    remote.set_attempts([done])
    late = write_export(remote, tmp_path / "late.parquet")
    for file, state, attempts in (
        (early, "lost", [lost]),
        (late, "done", [lost, done]),
        (early, "done", [lost, done]),
    ):
        import_file(store, file)
        assert store.jobs("campaign") == [make_job_row(state=state)]
        assert store.attempts(["job"]) == attempts


@pytest.mark.parametrize(
    "system, batch, state, before",
    [
        ("external@pool", "7", "done", "running"),
        ("external@pool", "", "done", "running"),  # reported before it had its number there
        ("external@pool", "8", "running", "lost"),  # queued again after the file was written
        ("pool", "7", "running", "running"),  # followed here
    ],
)
def test_import_sets_final_state_of_reported_job(
    store: Store, remote: Store, tmp_path: Path, system: str, batch: str, state: str, before: str
) -> None:
    ended = make_job_row(state="done", batch_system="pool", batch_id="7")
    remote.add([make_measurement()])
    remote.add_campaign(make_campaign_row(), [ended])
    remote.set_attempts([AttemptRow("job", 1, "done", 5, 9, 0, "", "")])
    file = write_export(remote, tmp_path / "theirs.parquet")
    running = replace(ended, state="running", batch_system=system, batch_id=batch)
    store.add_campaign(make_campaign_row(), [running])
    store.set_attempts([AttemptRow("job", 1, before, 5, 0, None, "", "")])
    import_file(store, file)
    (job,) = store.jobs("campaign")
    assert (job.state, job.batch_system) == (state, system)
    (attempt,) = store.attempts(["job"])
    assert attempt.state == (before if state == "running" else "done")


# Files of other programs


def rewrite_file(file: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Write a file as another program would, without Treehammer's metadata."""
    target = file.with_name("rewritten.parquet")
    parquet.write_table(change(parquet.read_table(file)).replace_schema_metadata({}), target)
    return target


@pytest.fixture(scope="module")
def measured_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a file of four measurements for all tests."""
    folder = tmp_path_factory.mktemp("plain")
    with Store.open(f"sqlite:///{folder}/plain.db") as plain:
        plain.add(
            make_measurement(position=n, retries=n, eff_job=n / 2, pass_loop_wall_s=[0.5, n])
            for n in range(1, 5)
        )
        return write_export(plain, folder / "plain.parquet")


@pytest.fixture
def plain_file(measured_file: Path, tmp_path: Path) -> Path:
    """Copy the file of four measurements for one test."""
    return Path(shutil.copy(measured_file, tmp_path))


def replace_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def test_foreign_column_types_are_accepted(store: Store, plain_file: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        table = replace_column(table, "retries", table["retries"].cast(pa.float64()))
        table = replace_column(table, "host", pa.nulls(4))
        table = replace_column(table, "site", table["site"].dictionary_encode())
        table = replace_column(table, "kind", table["kind"].cast(pa.large_string()))
        table = replace_column(table, "dirty", table["dirty"].cast(pa.int8()))
        table = replace_column(table, "eff_job", pa.array([0.5, float("nan"), 1.5, None]))
        lists = table["pass_loop_wall_s"].cast(pa.large_list(pa.float32()))
        return replace_column(table, "pass_loop_wall_s", lists)

    (result,) = import_file(store, rewrite_file(plain_file, change))
    assert import_counts([result]) == [(4, 0, 0, 0)]
    rows = [*store.measurements(EVERYTHING)]
    assert [row["retries"] for row in rows] == [1, 2, 3, 4]
    assert [row["eff_job"] for row in rows] == [0.5, None, 1.5, None]
    assert rows[2]["pass_loop_wall_s"] == [0.5, 3.0]
    assert rows[0]["site"] == "local"
    assert rows[0]["dirty"] is False


#: Column, its values, of which the second is invalid, and the reason.
INVALID_ROWS: list[tuple[str, Any, str]] = [
    ("eff_job", [0.5, float("inf"), 1, 2], "eff_job must be a finite number"),
    ("retries", [1.0, 2.5, 3.0, None], "retries must be a 64-bit whole number"),
    ("retries", np.array([1, 2**63, 3, 4], np.uint64), "retries must be a 64-bit"),
    ("position", [1, None, 3, 4], "position is missing"),
    ("dirty", [0, 2, 1, 0], "dirty must be true or false"),
    ("pass_loop_wall_s", [[1.0], [None], None, []], "pass_loop_wall_s must hold finite"),
    ("extra_hits", [1.0, float("-inf"), 2.0, None], "extra hits must be a finite number"),
]


def test_invalid_row_is_reported_and_others_imported(store: Store, plain_file: Path) -> None:
    for name, values, reason in INVALID_ROWS:

        def change(table: pa.Table, name: str = name, values: Any = values) -> pa.Table:
            column = pa.array(values)
            if name not in table.column_names:
                return table.append_column(name, column)
            return replace_column(table, name, column)

        file = rewrite_file(plain_file, change)
        (result,) = import_file(store, file, dry_run=True)
        assert import_counts([result]) == [(3, 0, 0, 1)], reason
        (problem,) = result.problems
        assert problem.startswith(f"{file}: row 2: {reason}")
    (result,) = import_file(store, file)
    assert import_counts([result]) == [(3, 0, 0, 1)]
    assert [row["position"] for row in store.measurements(EVERYTHING)] == [1, 3, 4]


@pytest.mark.parametrize(
    "change, text",
    [
        (
            lambda t: replace_column(t, "host", pa.array([1] * 4)),
            "column host has type int64; expected text",
        ),
        (
            lambda t: replace_column(t, "pass_loop_wall_s", pa.array([1.0] * 4)),
            "has type double; expected floats",
        ),
        (lambda t: t.drop_columns(["job_id"]), "required columns are missing: job_id"),
        (lambda t: t.append_column("new_metric", pa.array([1] * 4)), "): new_metric"),
        (lambda t: t.append_column("extra_a b", pa.array([1] * 4)), "): extra_a b"),
    ],
)
def test_wrong_columns_are_refused(store: Store, plain_file: Path, change: Any, text: str) -> None:
    refused, taken = import_file(store, rewrite_file(plain_file, change), plain_file)
    assert import_counts([refused]) == [(0, 0, 0, 0)]
    assert text in refused.problems[0]
    assert taken.new == 4, "it keeps no other file out"


def test_unknown_and_missing_columns(store: Store, plain_file: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        newer = table.append_column("new_metric", pa.array([1] * 4))
        return newer.drop_columns(["eff_job", "pass_loop_wall_s"])

    (result,) = import_file(store, rewrite_file(plain_file, change), ignore_unknown=True)
    assert import_counts([result]) == [(4, 0, 0, 0)]
    remarks = "\n".join(result.describe_remarks())
    assert "ignored columns: new_metric" in remarks
    assert "missing columns, unknown in all rows: eff_job, pass_loop_wall_s" in remarks
    assert [row["eff_job"] for row in store.measurements(EVERYTHING)] == [None] * 4


def test_unreadable_files_are_reported(store: Store, plain_file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(plain_file.read_bytes()[:-100])
    text = tmp_path / "text.parquet"
    text.write_text("no columns")
    encoded = pa.array([b"\xff"] * 4).view(pa.string())
    undecodable = rewrite_file(plain_file, lambda t: replace_column(t, "host", encoded))
    names = [cut, text, undecodable, tmp_path / "no.parquet", tmp_path / "theirs.root"]
    names[-1].write_text("a tree")
    results = import_file(store, *names, plain_file)
    assert [len(each.problems) for each in results] == [1, 1, 1, 1, 1, 0]
    assert all(str(name) in each.problems[0] for name, each in zip(names, results, strict=False))
    assert ".json of a benchmark tool or .darshan" in results[-2].problems[0]
    assert results[-1].new == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(MeasurementFileError, match="no file in this folder") as empty:
        list_files([tmp_path / "empty"])
    assert "name .json and .darshan themselves" in empty.value.hint


def test_damaged_export_gives_readable_rows(
    store: Store, remote: Store, plain_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_file(remote, plain_file)
    remote.add_campaign(make_campaign_row(), [])
    monkeypatch.setattr(arrow_stream, "BATCH_ROWS", 2)
    monkeypatch.setattr(file_writers, "ROW_GROUP_BYTES", 1)
    damaged = write_export(remote, tmp_path / "damaged.parquet")
    metadata, content = parquet.read_metadata(damaged), damaged.read_bytes()
    packed = metadata.metadata[b"treehammer.campaign"]
    changed = base64.b64encode(base64.b64decode(packed).replace(b"name of", b"name if"))
    count = b"retries\x15\x0c\x16"  # of values: 4 stands for 2, as Thrift writes it
    place = metadata.row_group(1).column(0).data_page_offset - 9
    identity = content[:place] + bytes([content[place] ^ 1])
    for old, new, problem in (
        (packed, changed, "table campaign differs from its checksum"),
        (count + b"\4", count + b"\0", "0 of 4 rows were found"),
        (content[: place + 1], identity, "cannot be read"),
    ):
        damaged.write_bytes(content.replace(old, new))
        assert problem in import_file(remote, damaged)[0].problems[0]
    monkeypatch.setattr(measurement_files, "READ_ROWS", 2)
    (result,) = import_file(store, damaged)
    assert result.new == 2
    assert "cannot be read" in result.problems[0]
    assert import_counts(import_file(store, plain_file)) == [(2, 2, 0, 0)]
    batch, packed = pa.record_batch({"id": ["x" * 8]}), pa.BufferOutputStream()
    pa.ipc.new_stream(packed, batch.schema).write_batch(batch)
    end, far = (struct.pack("2i8s", 0, end, b"x" * 8) for end in (8, 2**30))  # where Arrow reads
    companion = base64.b64encode(packed.getvalue().to_pybytes().replace(end, far))
    table = parquet.read_table(plain_file).replace_schema_metadata({"treehammer.job": companion})
    parquet.write_table(table, damaged)
    assert "cannot be read" in import_file(store, damaged)[0].problems[0]
