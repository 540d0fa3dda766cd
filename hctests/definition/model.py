"""Variants and pinned tests, and the content hashes of tests, series and comparisons.

:mod:`treehammer.hctests.pinned_tests` loads a :class:`PinnedTest` from a Git repository, and
:mod:`treehammer.hctests.definition.matrix` groups variants for planning.

Hashes identify tests, series and comparisons, independent of names. A series is defined by columns of
every measurement, :data:`SERIES_COLUMNS`, so that analysis can group stored rows. The storage site
counts only where it is not the job's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from treehammer.collectors.job_spec import SOLO
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION

if TYPE_CHECKING:
    from treehammer.hctests.definition.toml_models import (
        BeforeTable,
        BuildTable,
        LoadTable,
        TestDefinition,
    )


Scalar = str | int | float | bool

#: The file in a test's folder that defines the test.
TEST_FILE_NAME: Final = "test.toml"

#: The axis whose values are formats of the same content.
FORMAT_AXIS = "format"
#: The axis that turns asynchronous prefetching on.
PREFETCH_AXIS = "prefetch"
#: The axis whose values are datasets.
DATASET_AXIS = "dataset"

#: The axis whose values are commits of the test itself.
COMMIT_AXIS = "commit"
#: Typed value of that axis for the working tree, which no ref can be called.
WORKING_TREE = "."
#: Digits of a commit that are shown.
COMMIT_DIGITS = 10
#: Stands for the state of a modified working tree on a commit.
DIRTY_SUFFIX = "dirty"
#: Axes with a column of their own, which are no part of a variant's identity.
_AXES_WITH_COLUMNS = (DATASET_AXIS, COMMIT_AXIS)

#: The axis whose values are doors of a site.
DOOR_AXIS = "door"

#: Suffix of a payload -> its kind; every other payload is an executable.
PAYLOAD_KIND_BY_SUFFIX: Mapping[str, str] = {
    ".py": "python",
    ".C": "macro",
    ".cc": "macro",
    ".cpp": "macro",
    ".cxx": "macro",
}


def detect_payload_kind(payload: str) -> str:
    """Return ``python``, ``macro`` or ``executable``, by the file's suffix."""
    return PAYLOAD_KIND_BY_SUFFIX.get(PurePosixPath(payload).suffix, "executable")


@dataclass(frozen=True)
class Variant:
    """One point of the matrix: all axes except ``door`` with their values, in test.toml's order.

    Measurements store door, dataset and commit in columns of their own, so that a test that names its
    doors, datasets or commits and one that uses a site's doors, one dataset and one commit measure
    the same series.  ``door`` is
    set only where doors are bundled, so that one job reads through several.
    """

    values: tuple[tuple[str, Scalar], ...]
    door: str = ""

    def __getitem__(self, axis: str) -> Scalar:
        return dict(self.values)[axis]

    @cached_property
    def canonical_json(self) -> str:
        """The variant as canonical JSON without dataset and commit: its identity for each of them."""
        values = {axis: value for axis, value in self.values if axis not in _AXES_WITH_COLUMNS}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @property
    def dataset(self) -> str:
        """The dataset's name where datasets are an axis; '' elsewhere."""
        return str(dict(self.values).get(DATASET_AXIS, ""))

    @property
    def commit(self) -> str:
        """The test's commit where commits are an axis; '' elsewhere."""
        return str(dict(self.values).get(COMMIT_AXIS, ""))

    def with_access(self, access: str) -> Variant:
        """Copy the variant with another value of the axis ``access``."""
        return replace(self, values=tuple((dict(self.values) | {"access": access}).items()))

    def label(self, axes: tuple[str, ...]) -> str:
        """Format the given axes for display, e.g. ``branches=2% cache_mb=30 root=6.40.00``."""
        return (
            " ".join(f"{axis}={_format_axis_value(axis, self[axis])}" for axis in axes) or "default"
        )


def _format_axis_value(axis: str, value: Scalar) -> str:
    if axis == COMMIT_AXIS:
        return format_commit(str(value))
    if isinstance(value, str | bool):
        return str(value)
    return f"{100 * value:g}%" if axis in ("branches", "events") else f"{value:g}"


def format_commit(commit: str) -> str:
    """Shorten a value of the axis ``commit``, e.g. ``95f1d36c02`` or ``95f1d36c02+dirty``."""
    clean, plus, _ = commit.partition("+")
    return f"{clean[:COMMIT_DIGITS]}{plus and f'+{DIRTY_SUFFIX}'}"


@dataclass(frozen=True)
class VariantGroup:
    """Variants that differ only in the bundled axes and run interleaved in one job."""

    variants: tuple[Variant, ...]

    @property
    def key(self) -> str:
        """The variants as text, the group's identity."""
        return "|".join(
            variant.door + variant.canonical_json + variant.dataset + variant.commit
            for variant in self.variants
        )


@dataclass(frozen=True)
class PinnedTest:
    """A test pinned to a commit, or to a working tree, marked ``dirty`` if modified.

    Attributes:
        repository: URL or absolute path, without credentials.
        ref: the ref after ``@`` as typed ('' for a bare path).
        commit: full hash, '' outside Git.
        path: path of the test inside the repository.
        folder: local, read-only copy (or the working tree itself) with the test's files.
        hashes: relative name -> sha256 of each of the test's files.
        commits: value of the axis ``commit`` -> the test there; empty without this axis.
    """

    definition: TestDefinition
    repository: str
    ref: str
    commit: str
    dirty: bool
    path: str
    folder: Path
    hashes: Mapping[str, str] = field(default_factory=dict)
    commits: Mapping[str, PinnedTest] = field(default_factory=dict)


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
    definition, test = pinned.definition, pinned.definition.test
    load, before, build = definition.load, definition.before, definition.build
    # A key that a test does not use is left out, so that new keys change no older series.
    optional = {
        # Executions that take turns form other series than undisturbed ones.
        "mode": test.mode if test.mode != SOLO else "",
        "load": load and _measured_load(load),
        "before": before and _applied_settings(before),
        "record": test.record,
        "environment": definition.environment,
        "libraries": test.load,
        "imports": test.imports,
        "build": build and _built_files(build),
    }
    return _hash_document(
        {
            "files": {name: sha for name, sha in pinned.hashes.items() if name != TEST_FILE_NAME},
            "payload": test.payload,
            "tree": test.tree,
            "seed": test.seed,
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
        definition: a test's definition as a mapping, as campaigns store it.
    """
    return _hash_document({name: definition[name] for name in SETUP_KEYS if definition.get(name)})


def _applied_settings(before: BeforeTable) -> dict[str, Any]:
    """Return the part of a command that determines measurements; its file is hashed as well."""
    return {"command": before.command, "settings": sorted(before.settings)}


def _built_files(build: BuildTable) -> dict[str, Any]:
    """Return the part of a build that determines measurements; its files are hashed as well."""
    return build.model_dump(include={"command", "outputs", "preload"})


def _measured_load(load: LoadTable) -> dict[str, Any]:
    """Return the part of a load that determines measurements; waits and ceilings do not."""
    return load.model_dump(include={"together", "ramp", "step_s", "duration_s", "writes"})


def identify_commit(commit: str, dirty: bool, test_hash: str) -> str:
    """Return a test's value on the axis ``commit``; '' outside Git.

    It is the full hash, of a modified working tree with the start of the test's hash.
    """
    return f"{commit}+{test_hash[:_TREE_DIGITS]}" if commit and dirty else commit


def get_payload_hash(pinned: PinnedTest) -> str:
    """Return the SHA-256 (hex) of the payload file alone."""
    return pinned.hashes[pinned.definition.test.payload]


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
