"""Loads of a real object store."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from typing import Any

import pytest
from cached_software import prepare_cached
from load_generator import read_metrics
from object_store import ObjectStore, keys, store

from treehammer.collectors.job_spec import InputFile, LoadSpec

__all__ = ["keys", "store"]


@pytest.fixture(scope="module")
def stored_file(store: ObjectStore) -> InputFile:
    """A file in the store."""
    content = os.urandom(1 << 20)
    store.put("data/file", content)
    url = store.url_of("data/file")
    return InputFile("file", url, len(content), f"{zlib.adler32(content):08x}")


@pytest.mark.parametrize(
    ("test", "run", "axes", "counts"),
    [
        ("open-rate", "t.open_files", {"clients": 4, "rate_hz": 10}, {"open": 80}),
        (
            "read-pattern",
            "t.read_pattern",
            {"clients": 2, "reads": 20, "vector": 8, "chunk_kb": "0.1-5"},
            {"open": 2, "vector_read": 40},
        ),
        (
            "stream",
            "t.stream_files, prepare=t.write_streams",
            {"clients": 2, "files": 2, "size_mb": 1, "direction": "read"},
            {"read_file": 4},
        ),
        (
            "copy",
            "t.stream_files, prepare=t.write_streams",
            {"clients": 2, "files": 2, "size_mb": 1, "direction": "write", "client": "protocol"},
            {"copy": 4},
        ),
        (
            "pretend-transfer",
            "t.pretend_transfers, prepare=t.make_own_folders",
            {"clients": 2, "transfers": 2, "folders": "many"},
            {"mkdir": 4, "create": 4, "delete": 4, "rmdir": 4},
        ),
    ],
)
def test_loads_are_counted_exactly(
    bench: Any,
    make_spec: Any,
    store: ObjectStore,
    stored_file: InputFile,
    keys: None,
    test: str,
    run: str,
    axes: dict[str, Any],
    counts: dict[str, int],
) -> None:
    area = store.url_of("load") if "prepare" in run else ""
    duration_s = 2.0 if test == "open-rate" else 60.0
    load = LoadSpec(0, 1, "", "", 1.0, 0.0, 0.0, 1.0, duration_s, writable=area)
    software = prepare_cached("xrootd:6.2.1")
    spec = make_spec(files=(stored_file,), variant=axes, software=software)
    payload = f"import treehammer_load as t\nt.run({run})"
    ran = bench.run(payload, spec, load=load, metrics=read_metrics(test))
    (record,) = ran.records
    assert "failure_class" not in record.values, record.values["failure_message"]
    done: Counter[str] = Counter()
    for row in record.operations:
        assert json.loads(row["failures"]) == {}
        done[row["operation"]] += row["done"]
    assert {name: done[name] for name in counts} == counts
    assert record.extras.get("files_left", 0) == 0
