"""Datasets without ROOT: a small spec, and a stand-in for the ROOT process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from local_servers import authority, door
from tiny_dataset import load_generated_spec

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.datasets import root_process
from treehammer.datasets.specs import dataset_specs

__all__ = ["authority", "door"]

SPEC_TEXT = """
[dataset]
name = "tiny"
description = "a few branches"
root = "6.40.00"
seed = 7
entries = 100

[layout]
tree = "events"
compression = "zlib"
level = 1
events_per_cluster = 50

[[collection]]
name = "Muon"
mean = 2

[[branches]]
names = ["HLT_{08..11}", "flag"]
type = "bool"
shape = "scalar"
zeros = [0.1, 0.9]

[[branches]]
names = ["Muon_pt"]
type = "float"
shape = "jagged"
collection = "Muon"
bits = 8
"""


@pytest.fixture
def spec_text() -> str:
    return SPEC_TEXT


@pytest.fixture
def spec_file(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a spec to ``tiny.toml``."""

    def write(text: str) -> Path:
        path = tmp_path / "tiny.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def plan(spec_file: Callable[[str], Path]) -> dataset_specs.GeneratedSpec:
    return load_generated_spec(spec_file(SPEC_TEXT))


@pytest.fixture
def software() -> SoftwareRequest:
    return SoftwareRequest("6.40.00", "wheel", "6.40.00", "/nowhere")


@pytest.fixture
def fake_root(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace ROOT by a writer of a 3 MB file, and prepare none; return the recorded requests."""
    asked: list[str] = []

    def run(
        action: str, document: Any, request: SoftwareRequest, on_done: Any, **_options: bool
    ) -> dict[str, Any]:
        asked.append(action)
        if action == "make":
            Path(document["path"]).write_bytes(b"root" + bytes(3_000_000))
            on_done(document["entries"])
            return {"root": request.version, "zlib": "1.3"}
        if action in ("rewrite", "order", "twin"):
            Path(document["path"]).write_bytes(f"root {action}".encode())
            return {"root": request.version, "zlib": "1.3", "left_out": {}, "others": []}
        if action == "hashes":
            return {"root": request.version, "checksum": "c", "lines": ["a x 1"], "uncovered": []}
        if action == "probe":
            crash = {"name": "odd", "class": "Odd", "log": "Fatal in <F>: no", "end": "failed"}
            return {"root": request.version, "unreadable": [crash]}
        layout = {
            "tree": document["tree"] or "events",
            "format": "ttree",
            "sorted": ["entry"],
            "mean_jump": 0.0,
            "spanning": 0,
            "entries": 100,
            "record_zipped": 10,
            "record_unzipped": 40,
            "unzipped": [400, 100, 0],
            "zipped": [100, 50, 0],
            "embedded": [0, 0, 200],
            "baskets": [60, 40, 50],
            "clusters": [100, 50],
            "embeddedBaskets": [150, 50],
            "embeddedClusters": [0, 200],
            "branches": ["a", "b", "c"],
            "types": {"a": "Float_t", "b": "Float_t", "c": "Float_t"},
            "lengths": {},
            "friends": [],
        }
        layouts = [layout for _ in document["paths"]]
        return {"root": request.version, "layouts": layouts, "others": ["Runs"], "old_ntuples": []}

    monkeypatch.setattr(root_process, "run_action", run)
    monkeypatch.setattr(root_process, "prepare_root", lambda request, *_: request)
    return asked
