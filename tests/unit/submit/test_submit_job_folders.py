"""Folders of jobs: the start script of plain files, and archives that jobs return."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from polling import wait_until

from treehammer.errors import BatchError
from treehammer.submit.batch import job_folders
from treehammer.submit.batch.htcondor import submit_description
from treehammer.submit.batch.job_folders import pack_inputs, unpack_output

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


def _member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode, member.linkname = kind, size, 0o4644, "/etc/passwd"
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
        _member("output/big", size=5000),
    ],
    ids=lambda member: str(member.name),
)
def test_hostile_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: tarfile.TarInfo
) -> None:
    monkeypatch.setattr(job_folders, "MAX_OUTPUT_BYTES", 1000)
    (tmp_path / "job.json").write_text("mine")
    (tmp_path / "output").mkdir()
    archive = _write_archive(tmp_path / "output.tar", _member("output/good"), member)
    with pytest.raises(BatchError):
        unpack_output(archive, "output")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["job.json", "output", "output.tar"]
    assert (tmp_path / "job.json").read_text() == "mine"


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_partial_archive_is_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Debian 12's Python 3.11.2 has no filters of archives.
    monkeypatch.delattr(tarfile.TarInfo, "replace", raising=False)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    whole = _write_archive(tmp_path / "whole", _member("output/a", size=3000)).read_bytes()
    archive = tmp_path / "output.tar"
    for end in (0, 512, 3000, 3584):
        archive.write_bytes(whole[:end])
        with pytest.raises(BatchError, match=r"incomplete|damaged"):
            unpack_output(archive, "output")
    archive.write_bytes(whole)
    unpack_output(archive, "output")
    file = (tmp_path / "output/a").stat()
    assert (file.st_size, file.st_mode) == (3000, 0o100644)
