"""Bulk reading from a child that is paused and resumed (Ctrl-Z, freezer) or sends garbage."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from measurement_factory import make_measurement
from store_helpers import read_in_process

from treehammer.errors import StoreError
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns, arrow_stream
from treehammer.sql.write.store import Store

PATIENCE_S = 20


@pytest.fixture
def filled(store: Store) -> Store:
    store.add(make_measurement(job=f"{n:04}") for n in range(2000))
    return store


def test_paused_reader_loses_no_bytes(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Writes below a page are atomic on a pipe, so every column is larger.
    monkeypatch.setattr(arrow_columns, "BATCH_ROWS", 1000)
    # Container images often set this; a write interrupted by a pause is then never completed.
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with read_in_process(), arrow_stream.open_stream(filled.url, Selection(), {}) as source:
        whole = pa.Table.from_batches(source.batches, source.schema)
    others = set(psutil.Process().children())  # services that other tests have started
    with arrow_stream.open_stream(filled.url, Selection(), {}) as source:
        (child,) = set(psutil.Process().children()) - others
        paused = pa.Table.from_batches(_pausing(child, source.batches), source.schema)
    paused.validate(full=True)
    assert paused.equals(whole)


def test_unbuffered_stdout_gets_a_buffer() -> None:
    code = (
        "import io; from treehammer.program_output import open_binary_stdout as open_stdout\n"
        "with open_stdout() as stream: assert isinstance(stream, io.BufferedWriter)"
    )
    subprocess.run([sys.executable, "-u", "-c", code], check=True)


def test_endless_child_output_is_aborted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talker = tmp_path / "talker"
    talker.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    talker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(talker))
    with pytest.raises(StoreError), arrow_stream.open_stream(store.url, Selection(), {}):
        pass


def _pausing(child: psutil.Process, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        # The child fills the pipe, which has no reader, and blocks in a write.
        _wait_for(child, psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE)
        if child.status() != psutil.STATUS_ZOMBIE:
            child.suspend()
            _wait_for(child, psutil.STATUS_STOPPED)
            child.resume()
        try:
            yield next(batches)
        except StopIteration:
            return


def _wait_for(child: psutil.Process, *statuses: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while child.status() not in statuses:
        assert time.monotonic() < end, f"is still {child.status()}"
        time.sleep(0.01)
