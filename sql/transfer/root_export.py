"""Exports as a TTree, through a ROOT that Treehammer keeps in its cache.

Unknown values, as the tree's user info also states: empty for text and lists, NaN for floats, -2^63
for integers, 255 for booleans (UChar_t: 0 or 1). The branch ``looks_unknown`` names columns of a row
whose known value looks like one of these. The file also holds the trees of
:mod:`treehammer.sql.transfer.companion_tables`.

TTree::Draw, RDataFrame and uproot read every value correctly. JSROOT 7.11 turns each byte of a text
into a character, and shows integers far below zero, such as an unknown one, up to 2^32 too high.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import providers
from treehammer.collectors.software_preparation import prepare_root
from treehammer.errors import SoftwareError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.transfer.companion_tables import CompanionTable, ExportSink, OpenSink

TREE_NAME = "results"
TREE_TITLE = (
    "Treehammer measurements; unknown: text and lists empty, float NaN, int -2^63, bool 255"
)
#: Run by its path, so that no other Treehammer on Python's path takes its place.
WRITER_SCRIPT = Path(__file__).with_name("root_writer.py")
#: The branch that names columns whose value is known although it looks unknown.
AMBIGUOUS_ROWS_KEY = "looks_unknown"
NULL_CONVENTIONS: Mapping[str, str] = {
    "unknown_text": "empty",
    "unknown_list": "empty",
    "unknown_float": "NaN",
    "unknown_int": str(-(2**63)),
    "unknown_bool": "255",
}


@contextmanager
def open_root_writer(
    software_dir: Path, patience_s: float | None = None, bars: ProgressFactory = no_progress
) -> Iterator[OpenSink]:
    """Write ROOT files, one after the other, by one ROOT; they are complete when the block ends.

    Args:
        software_dir: the cached ROOT environments; the newest is used, or made when there is none.
        patience_s: time limit of ROOT in seconds; None for no limit.
        bars: opens the progress bar of a download of ROOT.

    Raises:
        SoftwareError: there is no ROOT that can be used.
        OSError: a file could not be written; the message is ROOT's, or that it took too long.
    """
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", str(WRITER_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=root_environment(software_dir, bars),
        )
        assert child.stdin is not None
        with _kill_after(child, patience_s) as timed_out:
            try:
                # A broken pipe means that the child has ended and reported the reason.
                with suppress(BrokenPipeError), child.stdin:
                    yield functools.partial(_open_root_file, child.stdin)
                code = child.wait()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if code and timed_out.is_set():
            raise TimeoutError(f"ROOT was not done within {patience_s:g} s")
        if code:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            raise OSError(f"ROOT said: {reason.strip()}")


@contextmanager
def _kill_after(
    child: subprocess.Popen[bytes], patience_s: float | None
) -> Iterator[threading.Event]:
    """Kill a child that takes longer; the event says whether it was killed."""
    timed_out = threading.Event()
    if patience_s is None:
        yield timed_out
        return

    def end() -> None:
        timed_out.set()
        child.kill()

    timer = threading.Timer(patience_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield timed_out
    finally:
        timer.cancel()


@contextmanager
def _open_root_file(pipe: IO[bytes], file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    sink = _TreeWriter(pipe, file, schema)
    yield sink
    sink.close()


class _TreeWriter:
    """Sends one Arrow stream after the other; each becomes a tree of the file."""

    def __init__(self, pipe: IO[bytes], file: Path, schema: pa.Schema) -> None:
        self._pipe = pipe
        self._about = {"tree_file": str(file), "looks_unknown": AMBIGUOUS_ROWS_KEY}
        about: dict[Any, Any] = {
            **schema.metadata,
            "tree_name": TREE_NAME,
            "tree_title": TREE_TITLE,
            **NULL_CONVENTIONS,
        }
        self._stream = self._begin_tree(schema, about)

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)

    def attach(self, companion: CompanionTable) -> None:
        self.close()
        title = f"Rows of table {companion.name}; null markers as in the tree {TREE_NAME}"
        about = {"tree_name": companion.name, "tree_title": title}
        self._stream = self._begin_tree(companion.schema, about)
        for batch in companion.batches:
            self._stream.write_batch(batch)

    def close(self) -> None:
        self._stream.close()

    def _begin_tree(self, schema: pa.Schema, about: Mapping[Any, Any]) -> Any:
        return pa.ipc.new_stream(self._pipe, schema.with_metadata({**about, **self._about}))


def root_environment(software_dir: Path, bars: ProgressFactory = no_progress) -> dict[str, str]:
    """Build the environment in which this interpreter finds the newest ROOT of the cache."""
    try:
        release = next(
            reversed(providers.list_prepared_releases(software_dir)), max(providers.WHEELS)
        )
        prepared = prepare_root(providers.parse_software_request(release), software_dir, bars)
        packages = sysconfig.get_path(
            "platlib", vars={"platbase": prepared.location, "base": prepared.location}
        )
        environment = providers.setup_software(prepared, os.environ, packages).env
    except (ExecutionError, SoftwareError) as fault:
        raise SoftwareError(
            f"a TTree is written by ROOT, which cannot be set up: {fault}",
            hint="CSV and Parquet need no ROOT: export to a name ending in .csv or .parquet.",
        ) from fault
    if not (Path(packages) / "ROOT").is_dir():
        raise SoftwareError(
            "this ROOT was installed for another version of Python",
            where=prepared.location,
            hint="Remove the folder: it will be made again.",
        )
    # Treehammer itself may be installed for this user alone.
    return {name: value for name, value in environment.items() if name != "PYTHONNOUSERSITE"}
