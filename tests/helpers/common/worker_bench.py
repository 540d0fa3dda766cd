"""Fixtures that run the packed worker on small payloads, as a batch system does."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from captured_runs import run_captured
from job_factory import make_execution, make_job

from treehammer.collectors import worker_zipapp
from treehammer.collectors.job_spec import ExecutionSpec, InputFile
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.hctests import __file__ as hctests_file

#: Payload that reads all entries of a tree; its compiled loop is in the shared folder.
READ_TREE = (Path(hctests_file).parent / "ttree-read" / "read.py").read_text(encoding="utf-8")


@dataclass
class WorkerResult:
    """Exit code, output and files of a run of the worker."""

    folder: Path
    exit_code: int
    output: str
    errors: str
    attempt: dict[str, Any]
    records: list[Measurement] = field(default_factory=list)

    @property
    def record_values(self) -> Mapping[str, Any]:
        """Values of the only record."""
        assert len(self.records) == 1
        return self.records[0].values

    def read_log(self, name: str) -> str:
        """Read a log."""
        return (self.folder / "logs" / name).read_text(errors="replace")


class WorkerBench:
    """A folder in which jobs are written and run by the worker."""

    def __init__(self, folder: Path, worker: Path) -> None:
        self.folder = folder
        self.worker = worker

    def write_job(
        self,
        payload: str,
        *executions: ExecutionSpec,
        files: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        """Write ``job.json``, a payload (a script's text) and files of its test, executable all."""
        payload_folder = self.folder / "payload"
        payload_folder.mkdir(exist_ok=True)
        for name, text in {"script": textwrap.dedent(payload).lstrip(), **files}.items():
            (payload_folder / name).write_text(text)
            (payload_folder / name).chmod(0o755)
        (self.folder / "job.json").write_text(make_job(*executions, **options).to_json())

    def command(self, *options: str, python: str = sys.executable) -> list[str]:
        """Build the command line that runs the job."""
        return [python, str(self.worker), "run", "job.json", *options]

    def run(
        self,
        payload: str,
        *executions: ExecutionSpec,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> WorkerResult:
        """Write the job, run the worker on it and read the results."""
        self.write_job(payload, *executions, **rest)
        done = run_captured(
            self.command(python=python),
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            timeout=600,
        )
        return self.read_result(done.returncode, done.stdout, done.stderr)

    def read_result(self, exit_code: int, output: str = "", errors: str = "") -> WorkerResult:
        """Read the results from the folder."""
        attempt = self.folder / "attempt.json"
        ran = WorkerResult(self.folder, exit_code, output, errors, {})
        if attempt.exists():
            ran.attempt = json.loads(attempt.read_text())
            for name in ran.attempt["records"]:
                text = (self.folder / "records" / f"{name}.json").read_text()
                ran.records.append(Measurement.from_json(text))
        return ran


@pytest.fixture(scope="session")
def packed_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker as jobs run it."""
    target = tmp_path_factory.mktemp("packed") / "worker.pyz"
    return worker_zipapp.build_worker(target, bytecode=True)


@pytest.fixture(scope="session")
def worker(packed_worker: Path) -> Path:
    """Folder with the packed worker's content; Python compiles a packed one at each start."""
    folder = packed_worker.with_suffix("")
    with zipfile.ZipFile(packed_worker) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def bench(tmp_path: Path, worker: Path) -> WorkerBench:
    folder = tmp_path / "job"
    folder.mkdir()
    return WorkerBench(folder, worker)


@pytest.fixture
def make_spec() -> Callable[..., ExecutionSpec]:
    """Factory of executions: ``make_spec(position, variant=..., files=...)``."""
    return make_execution


@pytest.fixture
def input_file(tmp_path: Path) -> InputFile:
    """A local file of 8 MB with its manifest entry."""
    import zlib

    content = os.urandom(1 << 20) * 8
    path = tmp_path / "data.bin"
    path.write_bytes(content)
    return InputFile("data.bin", str(path), len(content), f"{zlib.adler32(content):08x}")
