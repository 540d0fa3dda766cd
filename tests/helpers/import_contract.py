"""What imports promise on every database; see :mod:`store_contract`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from sql_makers import DAY, campaign_row, full_measurement, job_row, make_measurement
from store_contract import HOSTILE

from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import MAX_LONG_TEXT, Measurement
from treehammer.errors import FileError
from treehammer.sql import arrow, incoming, rollups
from treehammer.sql.database import reading
from treehammer.sql.export import export, export_parts
from treehammer.sql.figures import Figure
from treehammer.sql.importing import Imported, files_of, import_files
from treehammer.sql.retention import PRUNABLE
from treehammer.sql.rows import AttemptRow, ReplicaRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.terminal import Step, silent

EVERYTHING = Selection()


def nothing_shown(_total: int) -> AbstractContextManager[Step]:
    """A progress bar of an export."""
    return silent("", 0)


def write(
    store: Store, target: Path, selection: Selection = EVERYTHING, software: Path = Path()
) -> Path:
    """Export, as a folder where the name has no ending."""
    if target.suffix:
        export(store, selection, target, software_dir=software, progress=nothing_shown)
    else:
        export_parts(
            store, selection, target, ".parquet", software_dir=software, progress=nothing_shown
        )
    return target


def take_in(store: Store, *paths: Path, **options: bool) -> list[Imported]:
    """Import."""
    choice = {"ignore_unknown": False, "dry_run": False, **options}
    return import_files(store, files_of(paths), bars=silent, **choice)


def counts(found: Sequence[Imported]) -> list[tuple[int, int, int, int]]:
    return [(each.new, each.known, each.conflicts, each.invalid) for each in found]


def csv_of(store: Store, folder: Path) -> str:
    return write(store, folder / "all.csv").read_text()


def different_rollups(store: Store) -> str:
    with reading(store._engine) as connection:
        return rollups.difference(connection)


def awkward() -> Iterator[Measurement]:
    """Everything that a file might turn into something else."""
    numbers = [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]
    for place, text in enumerate(HOSTILE):
        extras = {"hits": place / 3} if place % 2 else {"e": place}
        yield make_measurement(job=f"text {place}", host=text, log_excerpt=text, extras=extras)
    for place, number in enumerate(numbers):
        yield make_measurement(
            job="numbers", position=place + 1, retries=number, eff_job=number / 7,
            read_latency_hist=numbers[2:], pass_loop_wall_s=[5e-324, -0.25], plausible=bool(place % 2),
            implausible_why=None if place % 2 else "no", failure_transient=bool(place % 2),
        )  # fmt: skip
    yield make_measurement(job="empty", read_latency_hist=[], pass_loop_wall_s=[], test_name="")
    yield make_measurement(job="marked", plausible=False, implausible_why="a; bad replica: b")
    yield make_measurement(job="elsewhere", campaign_id="odd id/é=%", site="far")
    yield from (full_measurement(n) for n in range(5))


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Another installation, with all that a store keeps."""
    monkeypatch.setattr(arrow, "ROWS", 7)
    monkeypatch.setattr(incoming, "ROWS", 7)
    with Store.open(f"sqlite:///{tmp_path}/others.db") as opened:
        opened.add(awkward())
        jobs = [job_row("done", state="done"), job_row("runs", state="running")]
        opened.add_campaign(campaign_row(), jobs)
        opened.add_campaign(campaign_row("unmeasured", plan="{}" * 5000), [])
        opened.set_attempts(
            [
                AttemptRow("done", 1, "lost", 5, 9, None, "lost", "the node went away"),
                AttemptRow("done", 2, "done", 10, 20, 0, "", ""),
                AttemptRow("runs", 1, "running", 5, 0, None, "", ""),
            ]
        )
        opened.add_replicas([_finding("bad", good=False), _finding("good", good=True, found_us=9)])
        yield opened


def _finding(id_: str, **changes: Any) -> ReplicaRow:
    row = ReplicaRow(
        id_, 5, "d", "hash", "far", "door", "file", "root://x//y", False, "it is short"
    )
    return replace(row, **changes)


# Round trips


@pytest.mark.parametrize("name", ["results.parquet", "parts"])
def test_what_was_exported_comes_back(
    store: Store, others: Store, tmp_path: Path, name: str
) -> None:
    file = write(others, tmp_path / name)
    rows = len([*awkward()])
    found = take_in(store, file, dry_run=True)
    assert sum(each.new for each in found) == rows
    assert sum(each.campaigns for each in found) == 2
    assert not [*store.measurements(EVERYTHING)]
    assert not store.campaigns()

    found = take_in(store, file)
    assert sum(each.new for each in found) == rows
    assert not any(each.problems or each.lacking or each.ignored for each in found)
    assert csv_of(store, tmp_path) == csv_of(others, tmp_path)
    assert store.campaigns() == others.campaigns()
    assert store.jobs("campaign") == [job_row("done", state="done")], (
        "others follow what runs there"
    )
    assert store.attempts(["done", "runs"]) == others.attempts(["done"])
    assert different_rollups(store) == ""

    assert all(each[0] == each[2] == 0 for each in counts(take_in(store, file)))
    assert csv_of(store, tmp_path) == csv_of(others, tmp_path)


def test_findings_of_replicas_travel_with_measurements_that_read_them(
    store: Store, others: Store, tmp_path: Path
) -> None:
    take_in(store, write(others, tmp_path / "all.parquet"))
    assert store.replicas() == others.replicas()


def test_two_installations_merge_without_doubling_any(
    store: Store, others: Store, tmp_path: Path
) -> None:
    store.add(make_measurement(job=f"text {n}", extras={"mine": n}) for n in (100, 101))
    store.add([*awkward()][:9])
    before = csv_of(store, tmp_path)
    theirs = write(others, tmp_path / "theirs.parquet")
    mine = write(store, tmp_path / "mine.parquet")
    rows = len([*awkward()])
    assert counts(take_in(store, theirs, dry_run=True)) == [(rows - 9, 9, 0, 0)]
    assert counts(take_in(store, theirs)) == [(rows - 9, 9, 0, 0)]
    assert counts(take_in(others, mine)) == [(2, 9, 0, 0)]
    union = csv_of(store, tmp_path)
    assert union == csv_of(others, tmp_path)
    assert len(union) > len(before)
    assert {row["job_id"] for row in store.measurements(EVERYTHING)} >= {"text 100", "marked"}


def test_a_file_that_comes_twice_at_once_counts_once(
    store: Store, others: Store, tmp_path: Path
) -> None:
    file = write(others, tmp_path / "a.parquet")
    again = Path(shutil.copy(file, tmp_path / "b.parquet"))
    rows = len([*awkward()])
    for dry_run in (True, False):
        found = take_in(store, file, again, dry_run=dry_run)
        assert counts(found) == [(rows, 0, 0, 0), (0, rows, 0, 0)]


def test_what_was_recorded_first_stays(store: Store, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement(host="there"), make_measurement(job="same")])
        file = write(others, tmp_path / "theirs.parquet")
    first = make_measurement(host="here")
    store.add([first, make_measurement(job="same")])
    for dry_run in (True, False):
        (found,) = take_in(store, file, dry_run=dry_run)
        assert counts([found]) == [(0, 1, 1, 0)]
        assert found.conflicting == [first.id]
        assert any(f"{first.id} came with other content" in line for line in found.remarks())
    assert [row["host"] for row in store.measurements(EVERYTHING)] == ["here", None]


def test_marks_of_bad_replicas_merge(store: Store, tmp_path: Path) -> None:
    """A mark is no other content: whoever knows that the replica was bad is right."""
    plain = make_measurement(job="known here")
    both = make_measurement(job="unknown here")
    store.add([plain])
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        for item in (plain, both):
            why: dict[str, Any] = {
                "plausible": False,
                "implausible_why": "bad replica: it is short",
            }
            others.add([Measurement({**item.values, **why})])
        file = write(others, tmp_path / "marked.parquet")
        for _ in range(2):
            (found,) = take_in(store, file)
            assert found.conflicts == 0
            rows = [*store.measurements(EVERYTHING, ["plausible", "implausible_why"])]
            assert rows == [{"plausible": False, "implausible_why": "bad replica: it is short"}] * 2
        assert different_rollups(store) == ""
        unmarked = tmp_path / "unmarked.db"
        with Store.open(f"sqlite:///{unmarked}") as third:
            third.add([plain, both])
            assert counts(take_in(others, write(third, tmp_path / "plain.parquet"))) == [
                (0, 2, 0, 0)
            ]
        assert not any(row["plausible"] for row in others.measurements(EVERYTHING, ["plausible"]))


def test_a_bad_replica_that_others_found_marks_what_read_it_here(
    store: Store, tmp_path: Path
) -> None:
    read: dict[str, Any] = {"dataset_hash": "hash", "site": "far", "door": "door"}
    read |= {"started_us": 3, "day": 19700101}
    store.add([make_measurement(job="mine", **read)])
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement(job="theirs", **read)])
        others.add_replicas([_finding("bad", good=False)])
        take_in(store, write(others, tmp_path / "theirs.parquet"))
    assert [row["plausible"] for row in store.measurements(EVERYTHING)] == [False, False]


def test_a_bad_replica_that_others_found_later_marks_what_came_before(
    store: Store, tmp_path: Path
) -> None:
    """The second file brings no measurement that is not there."""
    read: dict[str, Any] = {"dataset_hash": "hash", "site": "far", "door": "door"}
    read |= {"started_us": 3, "day": 19700101, "plausible": True}
    store.add([make_measurement(job="mine", **read)])
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement(job="theirs", **read)])
        take_in(store, write(others, tmp_path / "early.parquet"))
        others.add_replicas([_finding("bad", good=False)])
        late = write(others, tmp_path / "late.parquet")
    take_in(store, late, dry_run=True)
    assert all(row["plausible"] for row in store.measurements(EVERYTHING))
    assert counts(take_in(store, late)) == [(0, 1, 0, 0)]
    assert [row["plausible"] for row in store.measurements(EVERYTHING)] == [False, False]
    assert different_rollups(store) == ""


def test_what_went_by_age_there_is_no_conflict(store: Store, tmp_path: Path) -> None:
    whole = [
        make_measurement(position=n, log_excerpt="said", pass_loop_wall_s=[0.5, n]) for n in (1, 2)
    ]
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add(whole)
        early = write(others, tmp_path / "early.parquet")
        for what in PRUNABLE:
            others.prune(what, date(2027, 1, 1))
        late = write(others, tmp_path / "late.parquet")
    with Store.open(f"sqlite:///{tmp_path}/third.db") as third:
        third.add([whole[0], make_measurement(position=2, log_excerpt="else")])
        other = write(third, tmp_path / "other.parquet")
    for dry_run in (True, False):
        found = take_in(store, early, late, other, dry_run=dry_run)
        assert counts(found) == [(2, 0, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0)]


def test_what_is_marked_with_a_long_message_comes_back(store: Store, tmp_path: Path) -> None:
    read: dict[str, Any] = {"dataset_hash": "hash", "site": "far", "door": "door"}
    read |= {"started_us": 3, "day": 19700101, "plausible": False}
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement(job=why, implausible_why=why, **read) for why in ("a", "b")])
        others.add_replicas([_finding("bad", good=False, message="x" * MAX_LONG_TEXT)])
        assert others.mark_bad_replicas() == 2
        file = write(others, tmp_path / "marked.parquet")
        assert counts(take_in(store, file)) == [(2, 0, 0, 0)]
        assert csv_of(store, tmp_path) == csv_of(others, tmp_path)
        assert store.replicas() == others.replicas()


def test_jobs_that_went_on_there_are_brought_up_to_date(store: Store, tmp_path: Path) -> None:
    lost = AttemptRow("job", 1, "lost", 5, 9, None, "lost", "the node went away")
    done = AttemptRow("job", 2, "done", 10, 20, 0, "", "")
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement()])
        others.add_campaign(campaign_row(), [job_row(state="lost")])
        others.set_attempts([lost])
        early = write(others, tmp_path / "early.parquet")
        others.set_jobs([job_row(state="done")])
        others.set_attempts([done])
        late = write(others, tmp_path / "late.parquet")
    for file, state, attempts in (
        (early, "lost", [lost]),
        (late, "done", [lost, done]),
        (early, "done", [lost, done]),
    ):
        take_in(store, file)
        assert store.jobs("campaign") == [job_row(state=state)]
        assert store.attempts(["job"]) == attempts


def test_a_job_that_is_followed_here_is_left_alone(store: Store, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement()])
        others.add_campaign(campaign_row(), [job_row(state="lost")])
        others.set_attempts([AttemptRow("job", 3, "lost", 5, 9, None, "lost", "")])
        file = write(others, tmp_path / "theirs.parquet")
    store.add_campaign(campaign_row(), [job_row(state="running")])
    take_in(store, file)
    assert store.jobs("campaign") == [job_row(state="running")]
    assert store.attempts(["job"]) == []


@pytest.mark.parametrize(
    "batch, state, before",
    [
        ("7", "done", "running"),
        ("", "done", "running"),  # told before its batch system had numbered it
        ("8", "running", "lost"),  # queued anew since the file was written
    ],
)
def test_a_job_that_was_told_of_ends_as_the_file_says(
    store: Store, tmp_path: Path, batch: str, state: str, before: str
) -> None:
    ended = job_row(state="done", batch_system="pool", batch_id="7")
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement()])
        others.add_campaign(campaign_row(), [ended])
        others.set_attempts([AttemptRow("job", 1, "done", 5, 9, 0, "", "")])
        file = write(others, tmp_path / "theirs.parquet")
    running = replace(ended, state="running", batch_system="elsewhere@pool", batch_id=batch)
    store.add_campaign(campaign_row(), [running])
    store.set_attempts([AttemptRow("job", 1, before, 5, 0, None, "", "")])
    take_in(store, file)
    (job,) = store.jobs("campaign")
    assert (job.state, job.batch_system) == (state, "elsewhere@pool")
    (attempt,) = store.attempts(["job"])
    assert attempt.state == ("lost" if before == "lost" else "done")


def test_a_dry_run_counts_a_campaign_of_two_files_once(store: Store, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/others.db") as others:
        others.add([make_measurement()])
        others.add_campaign(campaign_row(), [])
        files = [write(others, tmp_path / name) for name in ("a.parquet", "b.parquet")]
    for dry_run in (True, False):
        found = take_in(store, *files, dry_run=dry_run)
        assert [one.campaigns for one in found] == [1, 0]


# Files of others


def rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """A file as a program of others would have written it: without anything of ours about it."""
    target = file.with_name("rewritten.parquet")
    parquet.write_table(change(parquet.read_table(file)).replace_schema_metadata({}), target)
    return target


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of four measurements."""
    folder = tmp_path_factory.mktemp("plain")
    with Store.open(f"sqlite:///{folder}/plain.db") as plain:
        plain.add(
            make_measurement(position=n, retries=n, eff_job=n / 2, pass_loop_wall_s=[0.5, n])
            for n in range(1, 5)
        )
        return write(plain, folder / "plain.parquet")


@pytest.fixture
def plain(measured: Path, tmp_path: Path) -> Path:
    """The same for one test."""
    return Path(shutil.copy(measured, tmp_path))


def put(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def test_types_of_other_programs_are_understood(store: Store, plain: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        table = put(table, "retries", table["retries"].cast(pa.float64()))
        table = put(table, "host", pa.nulls(4))
        table = put(table, "site", table["site"].dictionary_encode())
        table = put(table, "kind", table["kind"].cast(pa.large_string()))
        table = put(table, "dirty", table["dirty"].cast(pa.int8()))
        table = put(table, "eff_job", pa.array([0.5, float("nan"), 1.5, None]))
        lists = table["pass_loop_wall_s"].cast(pa.large_list(pa.float32()))
        return put(table, "pass_loop_wall_s", lists)

    (found,) = take_in(store, rewritten(plain, change))
    assert counts([found]) == [(4, 0, 0, 0)]
    rows = [*store.measurements(EVERYTHING)]
    assert [row["retries"] for row in rows] == [1, 2, 3, 4]
    assert [row["eff_job"] for row in rows] == [0.5, None, 1.5, None]
    assert rows[2]["pass_loop_wall_s"] == [0.5, 3.0]
    assert rows[0]["site"] == "local"
    assert rows[0]["dirty"] is False


WRONG: dict[str, tuple[str, Any, str]] = {
    "infinite": ("eff_job", [0.5, float("inf"), 1, 2], "eff_job must be a finite number"),
    "no whole number": ("retries", [1.0, 2.5, 3.0, None], "retries must be a 64-bit whole number"),
    "too large": ("retries", pa.array([1, 2**63, 3, 4], pa.uint64()), "retries must be a 64-bit"),
    "missing": ("job_id", ["job", None, "job", "job"], "job_id is missing"),
    "no text": ("job_id", ["job", "", "job", "job"], "job_id must not be empty"),
    "no number": ("position", [1, None, 3, 4], "position is missing"),
    "NUL": ("host", ["a", "b\0", "c", None], "host must not contain NUL"),
    "long": ("host", ["a", "b" * 4001, "c", None], "host is longer than 4000 characters"),
    "bool": ("dirty", [0, 2, 1, 0], "dirty must be true or false"),
    "list": ("pass_loop_wall_s", [[1.0], [None], None, []], "pass_loop_wall_s must hold finite"),
    "class": ("failure_class", [None, "good", "", "open"], "failure_class must be one of sub"),
    "kind": ("kind", ["timed", "whatever", "checksum", "timed"], "kind must be one of timed, "),
    "no kind": ("kind", ["timed", None, "checksum", "timed"], "kind must be one of timed, "),
    "day": ("day", [DAY, 20991399, DAY, DAY], "day must be the UTC day of started_us"),
    "version": ("record_version", [1, 2, 1, 1], "record_version must be 1"),
    "count": ("repeat", [1, 0, 1, 2], "repeat must be at least 1"),
    "identity": ("attempt", [1, 2, 1, 1], "measurement_id is not that of job_id, attempt"),
    "extra": ("extra_hits", [1.0, float("-inf"), 2.0, None], "extra_hits must be a finite number"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_row_that_is_not_valid_is_named_and_keeps_no_other_out(
    store: Store, plain: Path, what: str
) -> None:
    name, values, reason = WRONG[what]

    def change(table: pa.Table) -> pa.Table:
        column = values if isinstance(values, pa.Array) else pa.array(values)
        if name not in table.column_names:
            return table.append_column(name, column)
        return put(table, name, column)

    file = rewritten(plain, change)
    for dry_run in (True, False):
        (found,) = take_in(store, file, dry_run=dry_run)
        assert counts([found]) == [(3, 0, 0, 1)]
        (problem,) = found.problems
        assert problem.startswith(f"{file}: row 2: {reason}")
    assert [row["position"] for row in store.measurements(EVERYTHING)] == [1, 3, 4]


def test_what_cannot_have_been_measured_enters_no_mean(store: Store, plain: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        table = put(table, "eff_job", pa.array([0.5, 9.0, 0.5, 0.5]))
        return put(table, "failure_class", pa.array([None, "good", None, None]))

    take_in(store, rewritten(plain, change))
    (group,) = store.figure(Figure(("eff_job",))).groups
    assert group.outcomes == {"good": 3}
    assert group.metrics["eff_job"].mean == 0.5


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda t: put(t, "retries", pa.array(["1"] * 4)),
            "column retries holds string, where int",
        ),
        (lambda t: put(t, "host", pa.array([1] * 4)), "column host holds int64, where text"),
        (lambda t: put(t, "pass_loop_wall_s", pa.array([1.0] * 4)), "holds double, where floats"),
        (lambda t: t.drop_columns(["job_id"]), "lacks what every measurement has: job_id"),
        (lambda t: t.append_column("new_metric", pa.array([1] * 4)), "know: new_metric"),
        (lambda t: t.append_column("extra_a b", pa.array([1] * 4)), "know: extra_a b"),
    ],
)
def test_a_file_of_other_columns_is_refused_and_told(
    store: Store, plain: Path, change: Any, said: str
) -> None:
    refused, taken = take_in(store, rewritten(plain, change), plain)
    assert counts([refused]) == [(0, 0, 0, 0)]
    assert said in refused.problems[0]
    assert taken.new == 4, "it keeps no other file out"


def test_columns_that_are_not_known_can_be_left_out_and_those_that_lack_are_unknown(
    store: Store, plain: Path
) -> None:
    def change(table: pa.Table) -> pa.Table:
        newer = table.append_column("new_metric", pa.array([1] * 4))
        return newer.drop_columns(["eff_job", "pass_loop_wall_s"])

    (found,) = take_in(store, rewritten(plain, change), ignore_unknown=True)
    assert counts([found]) == [(4, 0, 0, 0)]
    remarks = "\n".join(found.remarks())
    assert "left out: new_metric" in remarks
    assert "lacks, unknown in its rows: eff_job, pass_loop_wall_s" in remarks
    assert [row["eff_job"] for row in store.measurements(EVERYTHING)] == [None] * 4


def test_a_folder_that_lacks_a_part_is_told(store: Store, others: Store, tmp_path: Path) -> None:
    folder = write(others, tmp_path / "parts")
    (lost,) = folder.glob("campaign_id=odd*/part.parquet")
    lost.unlink()
    found = {each.file: each for each in take_in(store, folder)}
    assert "there is no such file" in found[lost].problems[0]
    assert sum(each.new for each in found.values()) == len([*awkward()]) - 1


def test_a_part_of_another_export_is_told(store: Store, others: Store, tmp_path: Path) -> None:
    folder = write(others, tmp_path / "parts")
    part = folder / "campaign_id=campaign" / "part.parquet"
    parquet.write_table(parquet.ParquetFile(part).read().slice(1), part)
    (problem,) = [each.problems[0] for each in take_in(store, folder) if each.problems]
    assert "where its folder lists" in problem


def test_a_folder_of_other_programs_tells_the_campaign_by_its_name(
    store: Store, plain: Path, tmp_path: Path
) -> None:
    table = parquet.read_table(plain)
    parquet.write_to_dataset(table, tmp_path / "by arrow", partition_cols=["campaign_id"])
    (found,) = take_in(store, tmp_path / "by arrow")
    assert counts([found]) == [(4, 0, 0, 0)]
    assert {row["campaign_id"] for row in store.measurements(EVERYTHING)} == {"campaign"}


def test_files_that_are_none_are_told(store: Store, plain: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(plain.read_bytes()[:-100])
    text = tmp_path / "text.root"
    text.write_text("no tree")
    names = [cut, text, tmp_path / "no.parquet", tmp_path / "results.csv"]
    found = take_in(store, *names, plain)
    assert [len(each.problems) for each in found] == [1, 1, 1, 1, 0]
    assert all(str(name) in each.problems[0] for name, each in zip(names, found, strict=False))
    assert found[-1].new == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no file in this folder"):
        files_of([tmp_path / "empty"])


def test_a_file_that_ends_in_its_middle_gives_what_can_be_read(
    store: Store, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged.parquet"
    table = parquet.read_table(plain)
    parquet.write_table(table, damaged, row_group_size=2)
    group = parquet.ParquetFile(damaged).metadata.row_group(1).column(0)
    content = bytearray(damaged.read_bytes())
    place = group.dictionary_page_offset or group.data_page_offset
    content[place : place + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    damaged.write_bytes(content)
    monkeypatch.setattr(incoming, "ROWS", 2)
    (found,) = take_in(store, damaged)
    assert found.new == 2
    assert "cannot be read" in found.problems[0]
    assert counts(take_in(store, plain)) == [(2, 2, 0, 0)]


def test_catalogue_columns_are_all_carried() -> None:
    names = {metric.name for metric in CATALOGUE}
    assert set(full_measurement().values) == names
