"""Exports as a TTree, through a ROOT that Treehammer keeps in its cache.

Null values, as the tree's user info says, too: an unknown text is empty, an unknown list is empty,
an unknown float is NaN, an unknown int is -2^63, an unknown bool (UChar_t: 0 or 1) is 255.

TTree::Draw, RDataFrame and uproot read every value as it is.  JSROOT 7.11 makes one character of
each byte of a text, and shows integers far below zero, so also an unknown one, up to 2^32 too high.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from treehammer.collectors import software
from treehammer.collectors.failures import Fault
from treehammer.collectors.preparing import ready
from treehammer.errors import SoftwareError
from treehammer.terminal import progress_bar

TREE = "results"
TITLE = "Treehammer measurements; unknown: text and lists empty, float NaN, int -2^63, bool 255"
CONVENTIONS: Mapping[str, str] = {
    "unknown_text": "empty",
    "unknown_list": "empty",
    "unknown_float": "NaN",
    "unknown_int": str(-(2**63)),
    "unknown_bool": "255",
}


@contextmanager
def tree_writer(
    file: Path, schema: pa.Schema, software_dir: Path
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Write record batches to a TTree; yields the function that takes one.

    Args:
        file: the ROOT file to write, replaced when it exists.
        schema: of the batches, with the metadata of :func:`treehammer.sql.arrow.describe`.
        software_dir: the cached ROOT environments; the newest is used, or made when there is none.

    Raises:
        SoftwareError: there is no ROOT that can be used.
        OSError: the file could not be written; the message is ROOT's.
    """
    about = {**schema.metadata, "tree_name": TREE, "tree_title": TITLE, **CONVENTIONS}
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "treehammer.sql.root_writer", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=_environment(software_dir),
        )
        assert child.stdin is not None
        try:
            # A broken pipe means that the child has ended; it has said why.
            with (
                suppress(BrokenPipeError),
                child.stdin,
                pa.ipc.new_stream(child.stdin, schema.with_metadata(about)) as stream,
            ):
                yield stream.write_batch
            code = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        if code:
            said.seek(0)
            lines = said.read().decode(errors="replace").split("\n")
            why = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            raise OSError(f"ROOT said: {why.strip()}")


def _environment(software_dir: Path) -> dict[str, str]:
    """The environment in which this interpreter finds the newest ROOT of the cache."""
    try:
        release = next(reversed(software.prepared(software_dir)), max(software.WHEELS))
        prepared = ready(software.parse(release), software_dir, progress_bar)
        packages = sysconfig.get_path(
            "platlib", vars={"platbase": prepared.location, "base": prepared.location}
        )
        environment = software.setup(prepared, os.environ, packages).env
    except (Fault, SoftwareError) as fault:
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
