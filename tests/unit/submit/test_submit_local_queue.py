"""The local queue with its runner in this process: order, attempts, removal, and running loads."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polling import wait_until

from treehammer.collectors.job_spec import RETRY_EXIT_CODE, JobState
from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME, LoadProgress
from treehammer.config import load_settings
from treehammer.errors import BatchError
from treehammer.submit.batch import job_folders, local_batch
from treehammer.submit.batch.htcondor import submit_description
from treehammer.submit.batch.interface import AttemptStatus, JobDescription
from treehammer.submit.batch.job_folders import pack_inputs, unpack_output
from treehammer.submit.batch.local_batch import DESCRIPTION_NAME, LocalBatch
from treehammer.submit.batch.local_runner import ATTEMPT_PLACEHOLDER, QueueRunner
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads
from treehammer.submit.tools.read_session import cancel_on_interrupt


def describe_job(
    job_id: str,
    script: str = "",
    *,
    executable: str = "/bin/sh",
    inputs: dict[str, Path] | None = None,
    wall_s: float = 60.0,
    cpus: int = 1,
    together: int = 0,
) -> JobDescription:
    arguments = json.dumps(["-c", script, ATTEMPT_PLACEHOLDER])
    text = f'[job]\nexecutable = "{executable}"\narguments = {arguments}\n[environment]\n'
    return JobDescription(job_id, text, inputs or {}, together, wall_s, cpus)


class Queue:
    """A queue whose runner takes steps when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batch = LocalBatch(folder / "spool")
        self.runner = QueueRunner(self.batch)

    def submit(self, *jobs: JobDescription, slots: int = 1, campaign: str = "c") -> dict[str, str]:
        """Queue jobs with so many slots; return job id -> batch id."""
        self.batch.slots = slots
        return dict(self.batch.submit(campaign, jobs))

    def wait_for_release(self, name: str) -> str:
        """Return a script that runs until its job is released, or the tests have ended."""
        return f"until [ -e {self.folder}/{name} ] || ! kill -0 {os.getpid()}; do sleep 0.02; done"

    def release(self, *names: str) -> None:
        """Let jobs end, and wait until the runner has noticed it."""
        workers = [self.runner.workers[self.batch.find([name])[name]] for name in names]
        for name in names:
            (self.folder / name).touch()
        wait_until(lambda: all(worker.has_ended() for worker in workers), "they end")
        self.step()

    def step(self) -> None:
        self.runner.record_ended()
        self.batch.cancel_orphans()
        self.runner.end_workers()
        self.runner.start_queued()

    def settle(self) -> None:
        """Take steps until all jobs have ended."""

        def has_ended() -> bool:
            self.step()
            return not self.batch.select(local_batch.OPEN)

        wait_until(has_ended, "jobs end")

    def running(self) -> list[str]:
        return [job.job_id for job in self.batch.select("state = 'running'")]

    def attempts(self, batch_id: str) -> Sequence[AttemptStatus]:
        return self.batch.query([batch_id])[batch_id].attempts

    def states(self, batch_ids: dict[str, str]) -> list[JobState]:
        statuses = self.batch.query(batch_ids.values())
        return [statuses[batch_id].state for batch_id in batch_ids.values()]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr(LocalBatch, "_ensure_runner", lambda _: None)
    # It would kill all children of this process.
    monkeypatch.setattr(QueueRunner, "kill_processes", lambda *_: 0)
    made = Queue(tmp_path)
    steps = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: made.step())
    monkeypatch.setattr(local_batch, "time", steps)
    return made


@pytest.mark.parametrize(
    ("slots", "options", "waves"),
    [
        (1, {"a": {}, "b": {}, "c": {}}, ["a", "b", "c"]),
        (2, {"a": {}, "b": {}, "c": {}}, ["ab", "c"]),
        (2, {"a": {}, "b": {"cpus": 2}, "c": {"cpus": 6}, "d": {}}, ["a", "b", "c", "d"]),
        (1, {"a": {"together": 2}, "b": {"together": 2}}, ["ab"]),
    ],
    ids=["one slot", "two slots", "cpus", "together"],
)
def test_jobs_start_in_order_while_slots_are_free(
    queue: Queue, slots: int, options: dict[str, Any], waves: list[str]
) -> None:
    jobs = [describe_job(name, queue.wait_for_release(name), **options[name]) for name in options]
    batch_ids = queue.submit(*jobs, slots=slots)
    queue.step()
    for wave in waves:
        assert queue.running() == [*wave]
        queue.release(*wave)
    assert queue.states(batch_ids) == [JobState.DONE] * len(jobs)


def test_jobs_that_start_together_run_beside_no_others(queue: Queue) -> None:
    queue.submit(describe_job("first", queue.wait_for_release("first")), slots=2)
    pair = [describe_job(n, queue.wait_for_release(n), together=2) for n in ("a", "b")]
    queue.submit(*pair, slots=2)
    queue.submit(describe_job("last", queue.wait_for_release("last")), slots=2)
    queue.step()
    assert queue.running() == ["first", "a"]
    queue.release("first")
    assert queue.running() == ["a", "b"]
    queue.release("a", "b")
    queue.release("last")


def test_slots_are_those_of_the_newest_submission(queue: Queue) -> None:
    queue.submit(describe_job("a", queue.wait_for_release("a")), slots=1)
    queue.submit(describe_job("b", queue.wait_for_release("b")), slots=2)
    queue.step()
    assert queue.running() == ["a", "b"]
    queue.release("a", "b")


def test_repeated_job_is_queued_once(queue: Queue) -> None:
    first = queue.submit(describe_job("a"), describe_job("a"))
    again = queue.submit(describe_job("a"), describe_job("b"))
    assert again["a"] == first["a"]
    assert dict(queue.batch.find(["a", "b", "c"])) == again
    assert len(queue.batch.select("TRUE")) == 2
    queue.settle()


def test_submission_is_all_or_nothing(queue: Queue, tmp_path: Path) -> None:
    broken = describe_job("b", inputs={"missing": tmp_path / "missing"})
    with pytest.raises(BatchError, match="Nothing was submitted"):
        queue.submit(describe_job("a"), broken)
    assert queue.batch.find(["a", "b"]) == {}
    leftover = queue.batch.root / "incoming" / "1"
    leftover.mkdir(parents=True)
    queue.submit(describe_job("a"))
    assert not leftover.exists()
    queue.settle()


def test_exit_code_and_times_are_kept(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the system time is set back while the job runs."""
    ids = queue.submit(describe_job("a", "exit 3"))
    queue.step()
    earlier_ns = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: earlier_ns)
    queue.settle()
    assert queue.states(ids) == [JobState.DONE]
    (attempt,) = queue.attempts(ids["a"])
    assert (attempt.exit_code, attempt.reason) == (3, "")
    assert 0 < attempt.started_us <= attempt.ended_us


@pytest.mark.parametrize(
    ("script", "exit_code", "reason"),
    [
        ("kill -9 $$", -9, "the worker was killed by SIGKILL"),
        (f"exit {RETRY_EXIT_CODE}", RETRY_EXIT_CODE, ""),
    ],
)
def test_lost_worker_is_restarted_once_in_a_new_sandbox(
    queue: Queue, script: str, exit_code: int, reason: str
) -> None:
    ids = queue.submit(describe_job("a", script), describe_job("b", f"[ $0 -gt 1 ] || {script}"))
    queue.settle()
    assert queue.states(ids) == [JobState.LOST, JobState.DONE]
    attempts = queue.attempts(ids["a"])
    assert [attempt.exit_code for attempt in attempts] == [exit_code] * 2
    assert all(attempt.reason == reason for attempt in attempts)
    assert set(queue.batch.sandboxes(ids["a"])) == {1, 2}
    assert [attempt.state for attempt in queue.attempts(ids["b"])] == [JobState.LOST, JobState.DONE]


def test_job_over_wall_limit_is_lost(queue: Queue) -> None:
    ids = queue.submit(describe_job("long", "exec sleep 60", wall_s=0.1), describe_job("next"))
    queue.settle()
    assert queue.states(ids) == [JobState.LOST, JobState.DONE]
    (attempt,) = queue.attempts(ids["long"])
    assert attempt.reason == "over the wall limit of the job"


def test_job_that_cannot_start_is_lost_with_reason(queue: Queue) -> None:
    ids = queue.submit(
        describe_job("a", executable="/nonexistent/python"), describe_job("b"), describe_job("c")
    )
    (queue.batch.locate(ids["b"]) / DESCRIPTION_NAME).write_text("no description")
    queue.settle()
    assert queue.states(ids) == [JobState.LOST, JobState.LOST, JobState.DONE]
    assert "/nonexistent/python" in queue.attempts(ids["a"])[-1].reason
    assert "not a job description" in queue.attempts(ids["b"])[-1].reason


def test_cancelled_jobs_are_queued_again_once(queue: Queue) -> None:
    started = f"[ $0 -gt 1 ] || {queue.wait_for_release('never')}"
    ids = queue.submit(describe_job("a", started), describe_job("b"), describe_job("c"))
    queue.step()
    assert queue.batch.cancel(ids.values()) == 3
    assert queue.states(ids) == [JobState.CANCELLED] * 3
    assert queue.batch.cancel(ids.values()) == 0
    earlier = {ids["a"]: 1, ids["c"]: 4}
    for _ in range(2):
        assert set(queue.batch.requeue(earlier, lambda _, sent: sent)) == set(earlier)
    queue.settle()
    assert queue.states(ids) == [JobState.DONE, JobState.CANCELLED, JobState.DONE]
    # A later attempt than the caller knows of means that the job was queued again.
    queue.batch.requeue(earlier, lambda _, sent: sent)
    assert not queue.batch.select(local_batch.OPEN)
    numbers = [[attempt.number for attempt in queue.attempts(ids[name])] for name in "abc"]
    assert numbers == [[1, 2], [], [5]]


def test_requeued_job_has_replaced_inputs(queue: Queue, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("old")
    new.write_text("new")
    ids = queue.submit(describe_job("a", inputs={"token": old, "service": old}))
    queue.settle()
    queue.batch.requeue({ids["a"]: 1}, lambda _job, sent: {"token": new})
    queue.settle()
    sandbox = queue.batch.sandboxes(ids["a"])[2]
    assert (sandbox / "token").read_text() == "new"
    assert not (sandbox / "service").exists()


def test_jobs_share_the_files_of_equal_inputs(queue: Queue, tmp_path: Path) -> None:
    worker, payload = tmp_path / "worker.pyz", tmp_path / "payload"
    worker.write_bytes(bytes(1_000_000))
    payload.mkdir()
    (payload / "read.py").write_text("read")
    inputs = {path.name: path for path in (worker, payload)}
    ids = queue.submit(
        describe_job("a", "echo changed > payload/read.py", inputs=inputs),
        describe_job("b", inputs=inputs),
    )
    queue.settle()
    first, second = (queue.batch.locate(ids[name]) for name in ("a", "b"))
    assert (first / "inputs/worker.pyz").samefile(second / "attempt-1/worker.pyz")
    # A payload changes its own folder only.
    assert (second / "inputs/payload/read.py").read_text() == "read"

    changed = tmp_path / "changed"
    changed.write_text("new")
    queue.batch.requeue({ids["a"]: 1}, lambda _, sent: {**sent, "worker.pyz": changed})
    assert (first / "inputs/worker.pyz").read_text() == "new"
    assert (second / "inputs/worker.pyz").stat().st_size == 1_000_000
    queue.settle()
    assert 1_000_000 < queue.batch.purge(ids.values()) < 1_900_000


def test_clusters_are_purged_whole(queue: Queue) -> None:
    ids = queue.submit(describe_job("a"), describe_job("b", queue.wait_for_release("b")))
    queue.step()
    wait_until(queue.runner.workers[ids["a"]].has_ended, "the first job ends")
    queue.step()
    assert queue.batch.purge(ids.values()) == 0
    queue.release("b")
    assert queue.batch.purge([ids["a"]]) == 0
    assert dict(queue.batch.find(["a", "b"])) == ids
    assert queue.batch.purge(ids.values()) > 0
    assert queue.batch.find(["a", "b"]) == {}
    assert not any(queue.batch.jobs.iterdir())


def test_no_job_starts_on_a_full_disk(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = queue.submit(describe_job("a"))
    with monkeypatch.context() as patch:
        patch.setattr(local_batch, "MIN_FREE_BYTES", 10**18)
        queue.step()
        assert queue.states(ids) == [JobState.QUEUED]
        (line,) = queue.batch.explain_waiting(ids.values())
        assert line.startswith("No job starts: less than 1000000000000 MB are free in")
    assert queue.batch.explain_waiting(ids.values()) == []
    queue.settle()


def test_jobs_end_with_the_process_that_owns_them(queue: Queue) -> None:
    """Whatever ends it: the kernel releases its lock."""
    script = queue.wait_for_release("never")
    settings = load_settings({"data_dir": queue.folder}, environ={}, folder=queue.folder)
    with suppress(RuntimeError), cancel_on_interrupt(settings, "c"):
        ids = queue.submit(*(describe_job(name, script) for name in "ab"))
        queue.step()
        assert queue.states(ids) == [JobState.RUNNING, JobState.QUEUED]
        raise RuntimeError("the owner ends")
    queue.settle()
    assert queue.states(ids) == [JobState.CANCELLED] * 2
    with queue.batch.owned("d"):
        ended = queue.submit(describe_job("c"), campaign="d")
        queue.settle()
    assert queue.states(ended) == [JobState.DONE]
    assert list(queue.batch.owners.iterdir()) == []


def test_waiting_job_names_the_campaign_that_has_the_slots(queue: Queue) -> None:
    queue.submit(describe_job("a", queue.wait_for_release("a")), campaign="first")
    ids = queue.submit(describe_job("b"), campaign="second")
    queue.step()
    (line,) = queue.batch.explain_waiting(ids.values())
    assert line.startswith("Waiting: campaign first has 1 local slot (treehammer status first;")
    queue.release("a")
    assert queue.batch.explain_waiting(ids.values()) == []
    queue.settle()


def test_unknown_jobs_are_absent(queue: Queue) -> None:
    assert queue.batch.query(["000001-c.1", "../../etc.1", "nonsense", ""]) == {}
    assert queue.batch.sandboxes("000001-c.1") == {}
    assert queue.batch.cancel(["000001-c.1"]) == 0


STEP = {"step": 3, "step_s": 10, "done": 1000, "failed": 20, "bytes": 5_000_000}


class Spool:
    """A local queue with jobs ``a`` and ``b`` that run, and ``c``, which has ended."""

    def __init__(self, folder: Path) -> None:
        self.batch = LocalBatch(folder)
        with self.batch.transaction() as connection:
            for number, name in enumerate("abc"):
                attempt = {
                    "number": 1,
                    "state": "done" if name == "c" else "running",
                    "started_us": 1,
                    "ended_us": 0,
                    "exit_code": None,
                    "reason": "",
                }
                values = (number, f"x.{name}", name, attempt["state"], json.dumps([attempt]))
                connection.execute(
                    "INSERT INTO job (number, batch_id, job_id, wall_s, cpus, slots, together, "
                    "state, attempts) VALUES (?, ?, ?, 0, 1, 1, 0, ?, ?)",
                    values,
                )

    def write(self, job: str, text: str) -> None:
        path = self.batch.locate(f"x.{job}") / "attempt-1/work/1-1" / LOAD_PROGRESS_NAME
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def describe(self) -> str:
        return describe_running_loads(self.batch.read_load_steps(["x.a", "x.b", "x.c"]))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def test_rates_of_running_jobs_are_added(spool: Spool) -> None:
    assert spool.describe() == ""
    for job, number in (("a", 3), ("b", 2), ("c", 9)):
        spool.write(job, json.dumps({**STEP, "step": number}))
    assert spool.describe() == "step 3, 2 jobs: 200 operations/s, 4 failed/s, 1 MB/s"


def test_folders_that_a_job_removes_meanwhile_are_left_out(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit --wait` and the load page continue."""
    for job in "ab":
        spool.write(job, json.dumps(STEP))
    scan = os.scandir

    def remove_and_scan(path: Any) -> Any:
        if str(path).endswith("b/attempt-1/work"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert spool.describe().startswith("step 3, 1 job: 100 operations/s")


def test_files_that_are_no_steps_are_left_out(spool: Spool) -> None:
    spool.write("a", '{"step": 1')
    spool.write("b", json.dumps({**STEP, "step_s": 0}))
    assert spool.describe() == ""


@pytest.mark.parametrize("value", [None, "undefined", "{}", "{1,2}", '{1,2,"x",4,5,6}', [1, 2], 7])
def test_attributes_that_are_no_steps_are_left_out(value: object) -> None:
    assert LoadProgress.from_attribute(value) is None


START_SCRIPT = Path(submit_description.__file__).with_name("start.sh")
#: Worker that writes its arguments and ends as its job says.
WORKER = """\
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
(folder / "arguments").write_text(" ".join(sys.argv[1:]))
job = open("job.json").read()
def stop(*_): (folder / "stopped").touch(); sys.exit(7)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("ready").touch()
if job == "wait": time.sleep(60)
if job == "die": os.kill(os.getpid(), 9)
sys.exit(3)
"""


def _start(folder: Path, job: str, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
    """Pack the inputs of a job as a submission does, and start its script in an empty sandbox."""
    (folder / "worker.sh").write_text(f"exec {sys.executable} - \"$@\" <<'END'\n{WORKER}END\n")
    (folder / "payload").mkdir(exist_ok=True)
    (folder / "payload/run.sh").write_text("#!/bin/sh\n")
    (folder / "payload/run.sh").chmod(0o755)
    sandbox = folder / "sandbox"
    sandbox.mkdir(exist_ok=True)
    inputs = {"worker.pyz": folder / "worker.sh", "payload": folder / "payload"}
    pack_inputs(inputs, sandbox / job_folders.INPUT_ARCHIVE)
    (sandbox / "job.json").write_text(job)
    command = ["bash", str(START_SCRIPT), *arguments]
    return subprocess.Popen(command, cwd=sandbox, env={"PATH": os.environ["PATH"], **env})


def _unpacked(sandbox: Path) -> list[str]:
    unpack_output(sandbox / job_folders.OUTPUT_ARCHIVE, "output")
    return sorted(str(path.relative_to(sandbox)) for path in sandbox.glob("output/*/*"))


def test_start_script_runs_worker_and_archives_output(tmp_path: Path) -> None:
    assert _start(tmp_path, "x", "2").wait() == 3
    sandbox = tmp_path / "sandbox"
    assert os.access(sandbox / "payload/run.sh", os.X_OK)
    outputs = _unpacked(sandbox)
    assert outputs == [f"output/attempt-3/{n}" for n in ("arguments", "worker.err", "worker.out")]
    arguments = (sandbox / "output/attempt-3/arguments").read_text()
    assert arguments == "run job.json --once --attempt 3 --output output/attempt-3 --work work"
    assert not (sandbox / job_folders.OUTPUT_ARCHIVE).exists()


def test_job_ad_counts_starts_and_earlier_output_stays(tmp_path: Path) -> None:
    ad = tmp_path / "ad"
    for start in (1, 2):
        ad.write_text(f"NumJobStarts = 0\nNumShadowStarts = {start}\n")
        assert _start(tmp_path, "x", "0", _CONDOR_JOB_AD=str(ad)).wait() == 3
    attempts = {name.split("/")[1] for name in _unpacked(tmp_path / "sandbox")}
    assert attempts == {"attempt-1", "attempt-2"}


def test_signals_reach_worker_and_its_end_is_returned(tmp_path: Path) -> None:
    assert _start(tmp_path, "die", "0").wait() == -signal.SIGKILL
    (sandbox := tmp_path / "sandbox").joinpath("ready").unlink()
    slow = {"BASH_FUNC_kill%%": "() { command kill $* && sleep 0.2; }"}
    script = _start(tmp_path, "wait", "0", **slow)
    wait_until((sandbox / "ready").exists, "the job runs")
    script.terminate()
    assert script.wait() == 7
    assert "output/attempt-1/stopped" in _unpacked(sandbox)


def _write_archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def _member(name: str, kind: bytes = b"0", size: int = 0, **headers: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode, member.linkname = kind, size, 0o4644, "/etc/passwd"
    member.pax_headers = headers
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("../escaped"),
        _member("/tmp/escaped"),
        _member("output/../job.json"),
        _member("output/link", tarfile.SYMTYPE),
        _member("output/hard", tarfile.LNKTYPE),
        _member("output/pipe", tarfile.FIFOTYPE),
        _member("output/big", size=25_000),
        _member("output/long", comment="x" * 60_000),
        _member("output/nan", mtime="nan"),
        _member("output/inf", mtime="inf"),
        _member("output/nul", path="output/a\0b"),
        _member("output/deep", path="output" + "/a" * 3000),
        _member("output/sparse", **{"GNU.sparse.map": "a,b"}),  # type: ignore[arg-type]
    ],
    ids=lambda member: str(member.name),
)
def test_hostile_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: tarfile.TarInfo
) -> None:
    monkeypatch.setattr(job_folders, "MAX_OUTPUT_BYTES", 20_000)
    (tmp_path / "job.json").write_text("mine")
    (tmp_path / "output").mkdir()
    archive = _write_archive(tmp_path / "output.tar", _member("output/good"), member)
    with pytest.raises(BatchError):
        unpack_output(archive, "output")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["job.json", "output", "output.tar"]
    assert (tmp_path / "job.json").read_text() == "mine"


def test_partial_archive_is_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 12):  # Debian 12's Python 3.11.2 has no filters of archives.
        monkeypatch.delattr(tarfile.TarInfo, "replace", raising=False)
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    whole = _write_archive(tmp_path / "whole", _member("output/a", size=3000)).read_bytes()
    archive = tmp_path / "output.tar"
    packed = gzip.compress(whole).ljust(4 * 512, b"\0")
    for content in (b"", whole[:512], whole[:3000], whole[:3584], packed):
        archive.write_bytes(content)
        with pytest.raises(BatchError, match=r"incomplete|damaged"):
            unpack_output(archive, "output")
    archive.write_bytes(whole)
    unpack_output(archive, "output")
    file = (tmp_path / "output/a").stat()
    assert (file.st_size, file.st_mode) == (3000, 0o100644)
