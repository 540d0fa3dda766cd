"""Recordings of the XRootD client as datasets, for replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from treehammer.collectors.json_documents import load_json
from treehammer.collectors.record.xrootd_recording import (
    FIGURES_NAME,
    RECORDING_NAME,
    RecordingFigures,
    parse_recording,
)
from treehammer.collectors.shared_files import open_regular_file, read_document
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue, describe_file
from treehammer.datasets.manifest import RAW_LAYOUT, RECORDING, Manifest, digest_file
from treehammer.errors import DatasetError
from treehammer.text_formatting import ProgressFactory, byte_progress
from treehammer.version import __version__

#: Suffix by which ``datasets add`` knows a recording.
RECORDING_SUFFIX = ".csv"


def add_recording(
    catalogue: FolderCatalogue, name: str, paths: Sequence[Path], bars: ProgressFactory
) -> Manifest:
    """Add a recording as a dataset; adding the same recording again is accepted.

    Its second file holds its figures, so that a job that replays it knows them, too.

    Args:
        catalogue: the datasets of this machine.
        name: name of the new dataset.
        paths: the CSV file; a file of the same name with ``.json`` describes the recorded process.
        bars: opens progress bars.

    Raises:
        DatasetError: more than one file, not a recording, or the name is used for another one.
    """
    if len(paths) != 1:
        raise DatasetError(
            "a dataset holds one recording",
            where=name,
            hint="Add each file .csv under a name of its own, and ROOT files without one.",
        )
    path = paths[0]
    process = _read_process(path.with_suffix(".json"))
    figures = _measure_recording(path, process)
    return catalogue.create(
        name,
        path.stat().st_size,
        partial(_fill, name, path, figures, process, bars),
        find_existing=partial(_find_same, catalogue, name, path, bars),
        bars=bars,
    )


def _read_process(path: Path) -> Mapping[str, Any]:
    """Read the description of the recorded process; empty without any."""
    try:
        document = load_json(read_document(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"cannot be read ({error})", where=str(path), hint="Remove it to do without it."
        ) from error
    if not isinstance(document, dict):
        raise DatasetError("is no JSON object", where=str(path), hint="Remove it to do without it.")
    return document


def _measure_recording(path: Path, process: Mapping[str, Any]) -> RecordingFigures:
    try:
        with open_regular_file(path, follows_links=True) as stream:
            lines = TextIOWrapper(stream, "utf-8-sig", newline="")
            return RecordingFigures.measure(parse_recording(lines), process)
    except OSError as error:
        raise DatasetError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValueError as error:
        raise DatasetError(
            f"is not a recording: {error}",
            where=str(path),
            hint="Tests with record = true write recordings; so does any program with "
            "XRD_PLUGIN=libXrdClRecorder.so and XRD_RECORDERPATH=FILE.csv.",
        ) from error


def _fill(
    name: str,
    path: Path,
    figures: RecordingFigures,
    process: Mapping[str, Any],
    bars: ProgressFactory,
    folder: Path,
) -> Manifest:
    document = {**figures._asdict(), "process": dict(process)}
    (folder / FIGURES_NAME).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    with byte_progress(bars, f"Copying {name}", path.stat().st_size) as advance:
        recording_digest = digest_file(path, advance, copy_to=folder / RECORDING_NAME)
    figures_digest = digest_file(folder / FIGURES_NAME)
    files = (
        describe_file(RECORDING_NAME, recording_digest, RAW_LAYOUT),
        describe_file(FIGURES_NAME, figures_digest, RAW_LAYOUT),
    )
    origin = {
        "kind": RECORDING,
        "description": "",
        "sources": [str(path.resolve())],
        **{key: value for key, value in figures._asdict().items() if value is not None},
        **{f"recorded_{key}": value for key, value in process.items()},
        "treehammer": __version__,
    }
    return Manifest(name, files, origin)


def _find_same(
    catalogue: FolderCatalogue, name: str, path: Path, bars: ProgressFactory
) -> Manifest | None:
    """Return the existing dataset of this name if it holds the same recording; None without one."""
    if not catalogue.has(name):
        return None
    manifest = catalogue.verify(name, bars=bars)
    if digest_file(path).sha256 == manifest.files[0].sha256:
        return manifest
    raise DatasetError(
        f"there is already a dataset {name!r} of other content",
        where=str(catalogue.folder(name)),
        hint="A dataset never changes: add this recording under another name.",
    )
