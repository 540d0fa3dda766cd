"""Variants, and the content hashes of series and comparisons.

Hashes identify series and comparisons, independent of names. A series is defined by columns of every
measurement, :data:`SERIES_COLUMNS`, so that analysis can group stored rows. The storage site counts
only where it is not the job's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import Any, Final

from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION

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
#: In place of a payload: the command of ``[settings]`` is measured from outside.
ANY_COMMAND = "any"


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
        """Format those of the axes that it has, e.g. ``branches=2% cache_mb=30 root=6.40.00``."""
        names = set(axes) & set(dict(self.values))
        texts = (f"{axis}={_format_axis_value(axis, self[axis])}" for axis in axes if axis in names)
        return " ".join(texts) or "default"


def _format_axis_value(axis: str, value: Scalar) -> str:
    if axis == COMMIT_AXIS:
        return format_commit(str(value))
    if isinstance(value, str | bool):
        return str(value)
    return f"{100 * value:g}%" if axis in ("branches", "events") else format_scalar(value)


def format_scalar(value: Scalar) -> str:
    """Write a value of an axis as ``-P`` takes it, with all of its digits."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return text.lower() if isinstance(value, bool) else text


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


def compute_setup(definition: Mapping[str, Any]) -> str:
    """Hash the parts of a definition that two commits must share to be compared (SHA-256, hex).

    Files, payload, libraries and own metrics may differ between commits.

    Args:
        definition: a test's definition as a mapping, as campaigns store it.
    """
    return hash_document({name: definition[name] for name in SETUP_KEYS if definition.get(name)})


def identify_commit(commit: str, dirty: bool, test_hash: str) -> str:
    """Return a test's value on the axis ``commit``; '' outside Git.

    It is the full hash, of a modified working tree with the start of the test's hash.
    """
    return f"{commit}+{test_hash[:_TREE_DIGITS]}" if commit and dirty else commit


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
    names = {*SERIES_COLUMNS} - ({"site", "storage_site", "door"} & {*without})
    row = {name: measurement.get(name) for name in names}
    if COMMIT_AXIS in without:
        row["test_hash"] = [measurement.get(name) or "" for name in ("test_path", "setup")]
    if FORMAT_AXIS in without:
        row["dataset_hash"] = measurement.get("content_hash") or row["dataset_hash"]
    # The database stores empty text as NULL: "no dataset" is NULL there and '' in a plan.
    if "dataset" in without or row["dataset_hash"] is None:
        row["dataset_hash"] = ""
    row["axes"] = parse_axes(str(row.pop("variant")), without=without)
    if measurement.get("storage_site") in (None, "", measurement.get("site")):
        row.pop("storage_site", None)
    return hash_document(row)


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


def hash_document(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a document as canonical JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
