"""Content hashes that identify tests, series and comparisons, independent of names.

A series is defined by columns of every measurement, :data:`SERIES_COLUMNS`, so that analysis can
group stored rows.  The storage site counts only where it is not the job's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from treehammer.collectors.job_spec import SOLO, BuildCommand, ServerCommand
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    FORMAT_AXIS,
    TEST_FILE_NAME,
    LoadSettings,
    PinnedTest,
    Scalar,
    Variant,
)

#: Columns of a measurement that define its series.
SERIES_COLUMNS: Final = (
    "test_hash",
    "variant",
    "dataset_hash",
    "site",
    "storage_site",
    "door",
    "instrument_version",
)
#: Digits of the test's hash that distinguish the states of a working tree on one commit.
_TREE_DIGITS: Final = 12
#: Keys of a definition, besides the matrix, that determine how a payload is measured.
SETUP_KEYS: Final = ("tree", "seed", "settings", "mode", "load", "before", "record", "environment")
#: The axis of ROOT releases, which measurements store in a column of its own.
RELEASE_AXIS: Final = "root"


def compute_test_hash(pinned: PinnedTest) -> str:
    """Hash the parts of a test that determine a single measurement (SHA-256, hex).

    These are the content of every file except test.toml, and from test.toml payload, tree, seed,
    settings, environment, recording, the shape of its load and the units of its own metrics.  Matrix, numbers of repeats, rounds and passes, limits,
    name and description may change within a series; the dataset enters the series by its own hash.
    """
    definition = pinned.definition
    load, before, build = definition.load, definition.before, definition.build
    # A key that a test does not use is left out, so that new keys change no older series.
    optional = {
        # Executions that take turns form other series than undisturbed ones.
        "mode": definition.mode if definition.mode != SOLO else "",
        "load": load and _measured_load(load),
        "before": before and _applied_settings(before),
        "record": definition.record,
        "environment": definition.environment,
        "libraries": definition.libraries,
        "imports": definition.imports,
        "build": build and _built_files(build),
    }
    return _hash_document(
        {
            "files": {name: sha for name, sha in pinned.hashes.items() if name != TEST_FILE_NAME},
            "payload": definition.payload,
            "tree": definition.tree,
            "seed": definition.seed,
            "settings": definition.settings,
            "metrics": {name: metric.unit for name, metric in definition.metrics.items()},
            **{name: value for name, value in optional.items() if value},
        }
    )


compute_test_hash.__test__ = False  # type: ignore[attr-defined]  # not a pytest function


def compute_setup(definition: Mapping[str, Any]) -> str:
    """Hash the parts of a definition that two commits must share to be compared (SHA-256, hex).

    Files, payload, libraries and own metrics may differ between commits.

    Args:
        definition: a :class:`TestDefinition` as a mapping, as campaigns store it.
    """
    return _hash_document({name: definition[name] for name in SETUP_KEYS if definition.get(name)})


def _applied_settings(before: ServerCommand) -> dict[str, Any]:
    """Return the part of a command that determines measurements; its file is hashed as well."""
    return {"command": before.command, "settings": sorted(before.settings)}


def _built_files(build: BuildCommand) -> dict[str, Any]:
    """Return the part of a build that determines measurements; its limit of time does not."""
    return {name: value for name, value in asdict(build).items() if name != "timeout_s"}


def _measured_load(load: LoadSettings) -> dict[str, Any]:
    """Return the part of a load that determines measurements; waits and ceilings do not."""
    shape = asdict(load)
    return {name: shape[name] for name in ("together", "ramp", "step_s", "duration_s", "writes")}


def identify_commit(commit: str, dirty: bool, test_hash: str) -> str:
    """Return a test's value on the axis ``commit``; '' outside Git.

    It is the full hash, of a modified working tree with the start of the test's hash.
    """
    return f"{commit}+{test_hash[:_TREE_DIGITS]}" if commit and dirty else commit


def get_payload_hash(pinned: PinnedTest) -> str:
    """Return the SHA-256 (hex) of the payload file alone."""
    return pinned.hashes[pinned.definition.payload]


def compute_series(
    test: str, variant: Variant, dataset_hash: str, site: str, door: str, storage_site: str = ""
) -> str:
    """Compute the fingerprint (SHA-256, hex) of a measurement's series.

    Args:
        test: the test's hash, from :func:`compute_test_hash`.
        variant: a variant of its matrix.
        dataset_hash: ``Manifest.hash``; '' for a test that reads no dataset.
        site: name of the site.
        door: name of the door.
        storage_site: name of the site whose door is read; '' for the same site.
    """
    return compute_comparison_key(
        {
            "test_hash": test,
            "variant": variant.canonical_json,
            "dataset_hash": dataset_hash,
            "site": site,
            "storage_site": storage_site,
            "door": door,
            "instrument_version": INSTRUMENT_VERSION,
        },
        without=(),
    )


def compute_comparison_key(measurement: Mapping[str, Any], *, without: Collection[str]) -> str:
    """Compute the fingerprint without the compared axes: equal for comparable measurements.

    Args:
        measurement: contains :data:`SERIES_COLUMNS`, and ``content_hash``, which replaces the
            dataset's own hash when formats are compared, since each has its dataset.  When commits
            are compared, ``test_path`` and ``setup`` (see :func:`compute_setup`) replace the
            test's hash, since each commit has its payload.
        without: axes of the variant, ``site``, ``storage_site``, ``door``, ``dataset`` or
            ``commit``; empty for the series.
    """
    row = {name: measurement.get(name) for name in SERIES_COLUMNS}
    if COMMIT_AXIS in without:
        row["test_hash"] = [measurement.get(name) or "" for name in ("test_path", "setup")]
    # The database stores empty text as NULL: "no dataset" is NULL there and '' in a plan.
    row["dataset_hash"] = row["dataset_hash"] or ""
    if "dataset" in without:
        row["dataset_hash"] = ""
    elif FORMAT_AXIS in without:
        row["dataset_hash"] = measurement.get("content_hash") or row["dataset_hash"]
    row["axes"] = parse_axes(str(row.pop("variant")), without=without)
    if row["storage_site"] in (None, "", row["site"]):
        del row["storage_site"]
    for name in ("site", "storage_site", "door"):
        if name in without:
            row.pop(name, None)
    return _hash_document(row)


def parse_axes(variant: str, *, without: Collection[str] = ()) -> dict[str, Scalar]:
    """Parse a variant to its axes and values.

    Args:
        variant: JSON object, as stored in a measurement.
        without: axes to omit.

    Raises:
        ValueError: not JSON.
        AttributeError: not an object.
    """
    return {name: value for name, value in json.loads(variant).items() if name not in without}


@lru_cache(maxsize=4096)
def drop_release_axis(variant: str) -> str:
    """Return a variant without its ROOT release as canonical JSON: equal for the same work.

    Any text that is not a JSON object is returned unchanged.
    """
    try:
        return Variant(tuple(parse_axes(variant, without=(RELEASE_AXIS,)).items())).canonical_json
    except (ValueError, AttributeError, RecursionError):
        return variant


def _hash_document(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
