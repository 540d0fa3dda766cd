"""Load generators beside a test, and the operations that they report."""

from __future__ import annotations

import json
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polling import wait_until

from treehammer import hctests
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.operation_steps import find_operation_problems
from treehammer.load.kit.treehammer_load.recorder import MAX_CPU, MAX_LATE_SHARE
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

#: Folder of a storage that its server redirects to itself.
LOOP_FOLDER = f"{DATASET_FOLDER}/loop"


class LoopingStorage(XrootdStorage):
    """Storages whose servers redirect clients of one folder to themselves, again and again."""

    def configure(self) -> None:
        super().configure()
        for site in self.profiles:
            server = f"{self.links.location_of(site).door_address}:{self.ports[site]['root']}"
            path = self.folder / site / "xrootd.cfg"
            path.write_text(f"{path.read_text()}xrootd.redirect {server} {LOOP_FOLDER}\n")


SIZE = 8_000_000
#: Notes the instant of each operation before it is sent.
PAYLOAD = """
import os, treehammer_load
def operations(task, span):
    for operation in treehammer_load.{kind}_files(task, span):
        with open("progress.new", "w") as stream:
            stream.write(str(operation.due_s))
        os.replace("progress.new", "progress")
        yield operation
treehammer_load.run(operations)
"""

#: Payloads that need no notes.
CLOSED = {
    "stream": "run(t.stream_files, prepare=t.write_streams)",
    "delete": "run(t.delete_files, prepare=t.create_files)",
    "pretend": "run(t.pretend_transfers, prepare=t.make_own_folders)",
    "watch": "run_server_watch()",
    "storm": "run(t.storm_files, make_client=t.make_storm_client)",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Generator:
    """A load generator that runs in a folder of its own."""

    process: subprocess.Popen[bytes]
    folder: Path
    cores: int = 1

    def wait_for(self, due_s: float) -> None:
        """Wait until the operations of an instant are sent."""
        wait_until(lambda: self.progress() >= due_s, f"no operation due at {due_s} s")

    def progress(self) -> float:
        path = self.folder / "progress"
        return float(path.read_text()) if path.exists() else -1e9

    def read_operations(self) -> list[Row]:
        """Wait for the end and return the operations, which are valid."""
        assert self.process.wait(120) == 0, (self.folder / "log").read_text()
        rows: list[Row] = json.loads((self.folder / "result.json").read_text())["operations"]
        assert find_operation_problems(rows) == []
        return rows

    def read_rows(self) -> list[Row]:
        """Wait for the end and return the operations, of a generator that was not late unnoticed."""
        rows = self.read_operations()
        for step in {row["step"] for row in rows}:
            step_rows = [row for row in rows if row["step"] == step]
            late, due = (sum(row[name] for row in step_rows) for name in ("late", "scheduled"))
            assert len({row["generator_limited"] for row in step_rows}) == 1
            # Readers open their files before the first step, which is not judged.
            if not step_rows[0]["generator_limited"]:
                assert step_rows[0]["generator_cpu"] < MAX_CPU * self.cores
                assert (
                    "open" in {row["operation"] for row in step_rows}
                    or late <= due * MAX_LATE_SHARE
                )
        return rows

    def read_figures(self) -> dict[str, float]:
        """Return the figures that the payload reports beside its operations."""
        figures: dict[str, float] = json.loads((self.folder / "result.json").read_text())["extras"]
        return figures


def total(rows: list[Row], name: str) -> int:
    return sum(int(row[name]) for row in rows)


def failures(rows: list[Row]) -> set[str]:
    return {name for row in rows for name in json.loads(row["failures"])}


def latencies(rows: list[Row]) -> LatencyHistogram:
    return LatencyHistogram.sum(LatencyHistogram.decode(r["latency"]) for r in rows if r["latency"])


def find_area(storage: XrootdStorage, door: str) -> str:
    """Return the writable area of a door of the first site."""
    (match,) = [candidate for candidate in storage.doors("SITE_A") if candidate.name == door]
    return match.writable_url


def list_area(storage: XrootdStorage) -> list[Path]:
    """List everything in the writable area."""
    return sorted((storage_folder(storage.box, "SITE_A") / "load").rglob("*"))


def find_url(storage: XrootdStorage, door: str) -> str:
    if door == "file":
        return str(storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "data")
    prefixes = {candidate.name: candidate.prefix for candidate in storage.doors("SITE_A")}
    return f"{prefixes[door]}/data"


def read_metrics(test: str) -> dict[str, Any]:
    """Read the metrics that a shipped test declares."""
    path = Path(next(iter(hctests.__path__))) / test / "test.toml"
    metrics: dict[str, Any] = tomllib.loads(path.read_text())["metrics"]
    return metrics
