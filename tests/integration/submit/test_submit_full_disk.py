"""Full disks: a small one is mounted, filled and given room again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_user import LocalUser
from small_disk import SmallDisk, mounted_small_disk
from spool_harness import SpoolHarness

from treehammer.collectors.job_spec import RETRY_EXIT_CODE
from treehammer.errors import BatchError, ExitCode, StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store

SIZE_MB = 48

GOOD = (
    """echo '{"format": 1, "values": {}, "extras": {}, "failure": null}' > "$TREEHAMMER_RESULT"\n"""
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_small_disk(tmp_path / "disk", SIZE_MB) as made:
        yield made


@pytest.fixture
def tight(tmp_path: Path, disk: SmallDisk) -> Iterator[LocalUser]:
    """A desk whose queue lies on the small disk, and its database elsewhere."""
    desk = LocalUser(tmp_path, disk.folder / "data", f"sqlite:///{tmp_path / 'results.db'}")
    yield desk
    bench = SpoolHarness(tmp_path / "bench", spool=desk.settings.spool_dir)
    bench.kill_runner()
    assert not any(bench.end_processes().values()), "processes stayed behind"


def run_test(desk: LocalUser, payload: str) -> None:
    (desk.test / "run.sh").write_text(f"#!/bin/sh\n{payload}")


@pytest.mark.parametrize("room", [20_000, 600_000], ids=["to render", "to queue"])
def test_submission_onto_a_full_disk_is_refused_whole(
    tight: LocalUser, disk: SmallDisk, room: int
) -> None:
    disk.fill_disk(leave=room)
    error = tight.invoke_command("submit", str(tight.test), "-S", "repeats=8").exception
    assert isinstance(error, BatchError)
    assert error.exit_code is ExitCode.INFRASTRUCTURE
    assert error.where.startswith(str(tight.settings.data_dir))
    assert "No space left on device" in str(error)
    assert "Free disk space" in str(error)
    spool = tight.settings.spool_dir
    assert not any(spool.glob("jobs/*"))
    assert not any(spool.glob("incoming/*"))
    disk.free_space()
    assert tight.invoke_command("submit", str(tight.test)).return_value == 0
    assert len(list(spool.glob("jobs/*/*/description.toml"))) == 2
    tight.invoke_command("cancel", "last")


def test_jobs_wait_for_room_and_status_says_so(tight: LocalUser, disk: SmallDisk) -> None:
    tight.write_payload(0.5)
    tight.invoke_command("submit", str(tight.test))
    bench = SpoolHarness(tight.folder / "bench", spool=tight.settings.spool_dir)
    bench.wait_for_status(lambda: any(bench.job_pids(b) for b in bench.batch_ids()), 60)
    disk.fill_disk(leave=2_000_000)
    first, second = sorted(bench.batch_ids())
    bench.wait_until_final([first], seconds=120)
    printed = tight.invoke_command("status", "last").output
    assert f"less than 16 MB are free in {tight.settings.spool_dir}" in printed
    assert not bench.make_batch().query([second])[second].attempts
    disk.free_space()
    assert "4 of 4" in tight.invoke_command("status", "last", "--follow").output
    assert {row["failure_class"] for row in tight.read_measurements()} == {None}


def test_records_that_find_no_room_are_measured_again(tight: LocalUser, disk: SmallDisk) -> None:
    once = tight.folder / "once"
    run_test(tight, f"{GOOD}if mkdir {once}; then cat /dev/zero > {disk.filler}; fi\nexit 0\n")
    tight.invoke_command("submit", str(tight.test), "-S", "repeats=2")
    bench = SpoolHarness(tight.folder / "bench", spool=tight.settings.spool_dir)
    first = sorted(tight.settings.spool_dir.glob("jobs/*/1"))[0]
    bench.wait_for_status(
        lambda: (first / "attempt-1.pid").exists() and not bench.job_pids(_id(first)), 120
    )
    disk.free_space()
    campaign = tight.last_campaign_id()
    tight.invoke_command("status", campaign, "--follow")
    with Store.open(tight.settings.database) as store:
        jobs = store.jobs(campaign)
        attempts = sorted((store.attempts([job.id]) for job in jobs), key=len)
        came = store.count_by_attempt(campaign)
    assert [[a.exit_code for a in of_job] for of_job in attempts] == [[0], [RETRY_EXIT_CODE, 0]]
    full = attempts[1][0]
    # With room for both records, if not for the account of the attempt, nothing is lost.
    whole = came.get((full.job_id, 1)) == 2
    assert full.failure_class == ("" if whole else "upload")
    (site,) = json.loads(tight.invoke_command("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {}), "made good by the second attempt"


def _id(job: Path) -> str:
    return f"{job.parent.name}.{job.name}"


def test_payload_that_fills_its_folder_fails_clearly(tight: LocalUser, disk: SmallDisk) -> None:
    run_test(tight, f"cat /dev/zero > big || exit 7\n{GOOD}")
    done = tight.invoke_command("submit", str(tight.test), "--wait", "-S", "repeats=1")
    assert done.return_value == 1
    assert "2 × payload at local: " in done.output
    columns = ("failure_class", "failure_kind", "failure_message", "failure_transient")
    with Store.open(tight.settings.database) as store:
        rows = list(store.measurements(Selection(), columns))
    assert len(rows) == 2, "the record of the first found room, and the second ran"
    for row in rows:
        assert (row["failure_class"], row["failure_kind"]) == ("payload", "disk-full")
        assert f"The disk of its work folder is full, {disk.folder}: " in str(
            row["failure_message"]
        )
        assert row["failure_transient"]


def test_collecting_into_a_full_database_keeps_the_records(tmp_path: Path, disk: SmallDisk) -> None:
    desk = LocalUser(tmp_path, database=f"sqlite:///{disk.folder / 'results.db'}")
    desk.invoke_command("submit", str(desk.test), "-S", "repeats=2")
    bench = SpoolHarness(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait_until_final(bench.batch_ids(), seconds=120)
    disk.fill_disk()
    error = desk.invoke_command("collect").exception
    assert isinstance(error, StoreError)
    assert error.exit_code is ExitCode.INFRASTRUCTURE
    assert str(disk.folder / "results.db") in str(error)
    # SQLite tells of it in one way or another, as it finds the log or its index without room.
    assert "Free space" in error.hint or "Check space" in error.hint
    disk.free_space()
    assert "4 new measurements, 0 known" in desk.invoke_command("collect").output
    assert "0 new measurements, 4 known" in desk.invoke_command("collect").output
    assert check_database(desk.settings.database)["measurement"] == 4
    (site,) = json.loads(desk.invoke_command("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {})
