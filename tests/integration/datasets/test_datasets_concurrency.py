"""Concurrent and interrupted generation of a dataset."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs import dataset_specs

pytestmark = pytest.mark.root

HERE = Path(__file__).parent
PATIENCE_S = 120


def _start(folder: Path, spec_file: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, (HERE / "make_tiny.py", folder, spec_file))]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def _until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    pytest.fail(f"waited {PATIENCE_S} s for {what}")


def _half_made(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".tiny.part-*/tiny.root") if path.stat().st_size > 100_000]


def _children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def long_spec(tmp_path: Path) -> Path:
    """Write a spec of ``tiny`` with enough events to interrupt its generation."""
    path = tmp_path / "long" / "tiny.toml"
    path.parent.mkdir()
    text = (HERE / "tiny.toml").read_text(encoding="utf-8")
    path.write_text(text.replace("entries = 1500", "entries = 3000000"), encoding="utf-8")
    return path


def test_concurrent_processes_make_dataset_once(
    tmp_path: Path, tiny: dataset_specs.GeneratedSpec, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    folder = tmp_path / "datasets"
    processes = [_start(folder, HERE / "tiny.toml") for _ in range(2)]
    outputs = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    made = [errors for _, errors in outputs if "Making tiny" in errors]
    verified = [errors for _, errors in outputs if "Verifying tiny" in errors]
    assert len(made) == len(verified) == 1
    assert FolderCatalogue(folder).verify("tiny").size > 0


@pytest.mark.usefixtures("warm_actions_of_test")
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_make_leaves_no_files(
    stop: signal.Signals,
    tmp_path: Path,
    long_spec: Path,
    tiny: dataset_specs.GeneratedSpec,
    software: Callable[[str], SoftwareRequest],
) -> None:
    root = software("6.40.00")
    catalogue = FolderCatalogue(tmp_path / "datasets")
    process = _start(catalogue.root, long_spec)
    try:
        _until(lambda: _half_made(catalogue.root), "a half-made file")
        (child,) = _children(process.pid)
        process.send_signal(stop)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    _until(lambda: not _running(child), "the end of the ROOT process")
    assert process.returncode != 0
    assert catalogue.names() == ()
    if stop is signal.SIGINT:
        assert not list(catalogue.root.glob(".tiny.part-*"))
    catalogue.make(tiny, root)
    assert catalogue.names() == ("tiny",)
    assert not list(catalogue.root.glob(".tiny.part-*"))


def test_write_error_is_reported(
    tmp_path: Path, long_spec: Path, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    folder = tmp_path / "datasets"
    limit = (1_000_000, 1_000_000)
    process = _start(
        folder, long_spec, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "refused: " in errors
    assert "tiny.root cannot be written; " in errors
    assert "MB are free" in errors
    assert "ROOT said: " in errors
    assert "Traceback" not in errors
    assert not list(folder.glob(".tiny.part-*"))
    assert FolderCatalogue(folder).names() == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    folder = tmp_path / "small disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_reported_and_files_removed(
    small_disk: Path, long_spec: Path, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    process = _start(small_disk, long_spec)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "refused: " in errors
    assert "tiny.root cannot be written; 0 MB are free" in errors
    assert "ROOT said: Error in <TFile::WriteBuffer>" in errors
    assert "Traceback" not in errors
    assert [path.suffix for path in small_disk.iterdir()] == [".lock"]


def test_full_disk_is_reported_before_writing(
    small_disk: Path, software: Callable[[str], SoftwareRequest]
) -> None:
    software("6.40.00")
    process = _start(small_disk, dataset_specs.list_shipped_specs()["reference-750mb"])
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "refused: " in errors
    assert "reference-750mb needs 751 MB and 4 MB are free" in errors
    assert "--cache-dir" in errors
    assert "Making reference-750mb" not in errors
    assert [path.suffix for path in small_disk.iterdir()] == [".lock"]
