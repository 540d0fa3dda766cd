"""A test, its axes and its variants, as plain values.

:mod:`treehammer.hctests.schema.definition_loader` makes a :class:`TestDefinition` from ``test.toml``,
:mod:`treehammer.hctests.git.pinned_tests` a :class:`PinnedTest` from a Git repository, and
:mod:`treehammer.hctests.matrix.variant_expansion` the :class:`VariantGroup` objects that a plan multiplies out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

Scalar = str | int | float | bool

#: The file in a test's folder that defines the test.
TEST_FILE_NAME: Final = "test.toml"

#: The axis whose values are the formats in which one content is read.
FORMAT_AXIS = "format"

#: Suffix of a payload -> its kind; every other payload is an executable.
PAYLOAD_KIND_BY_SUFFIX: Mapping[str, str] = {
    ".py": "python",
    ".C": "macro",
    ".cc": "macro",
    ".cpp": "macro",
    ".cxx": "macro",
}


def detect_payload_kind(payload: str) -> str:
    """``python``, ``macro`` or ``executable``, told by the file's suffix."""
    return PAYLOAD_KIND_BY_SUFFIX.get(PurePosixPath(payload).suffix, "executable")


@dataclass(frozen=True)
class Variant:
    """One point of the matrix: every axis but ``door`` and its value, in the order of test.toml.

    The door is a column of its own in every measurement, so that a test that names its doors and
    one that takes what a site offers measure the same series.
    """

    values: tuple[tuple[str, Scalar], ...]

    def __getitem__(self, axis: str) -> Scalar:
        return dict(self.values)[axis]

    @cached_property
    def canonical_json(self) -> str:
        """Canonical JSON: the identity of the variant."""
        return json.dumps(dict(self.values), sort_keys=True, separators=(",", ":"))

    def label(self, axes: tuple[str, ...]) -> str:
        """Display name made of the given axes, e.g. ``branches=2% cache_mb=30 root=6.40.00``."""
        return (
            " ".join(f"{axis}={_format_axis_value(axis, self[axis])}" for axis in axes) or "default"
        )


def _format_axis_value(axis: str, value: Scalar) -> str:
    if isinstance(value, str | bool):
        return str(value)
    return f"{100 * value:g}%" if axis in ("branches", "events") else f"{value:g}"


@dataclass(frozen=True)
class VariantGroup:
    """Variants that differ only in the bundled axes and run interleaved in one job."""

    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class MetricDeclaration:
    """A counter that the payload reports beyond the catalogue."""

    unit: str = "1"
    better: str = ""
    description: str = ""


@dataclass(frozen=True)
class TestDefinition:
    """``test.toml``, validated and with every default filled in.

    ``axes`` maps each axis to its values in order; all of
    :data:`treehammer.collectors.record.metric_catalogue.CATALOGUE_AXES` except ``door`` are always present (``door``
    only when test.toml names it: otherwise every site's first door is used).
    ``files`` are relative to the test's folder and include ``test.toml`` and the payload.
    ``twins`` maps values of the axis ``format`` to datasets of the same content as ``dataset``,
    which is read for all other values.
    """

    name: str
    description: str
    payload: str
    dataset: str
    tree: str
    repeats: int
    rounds: int
    passes: int
    seed: int
    wall_limit_s: float
    memory_limit_mb: int
    axes: Mapping[str, tuple[Scalar, ...]]
    bundle: tuple[str, ...]
    exclude: tuple[Mapping[str, Scalar], ...]
    include: tuple[Mapping[str, Scalar], ...]
    settings: Mapping[str, Any]
    metrics: Mapping[str, MetricDeclaration]
    files: tuple[str, ...]
    twins: Mapping[str, str] = field(default_factory=dict)

    __test__ = False  # not a pytest class

    def dataset_for(self, variant: Variant) -> str:
        """Name of the dataset that a variant reads; '' when it needs none."""
        return self.twins.get(str(dict(variant.values).get(FORMAT_AXIS, "")), self.dataset)

    @property
    def payload_kind(self) -> str:
        """``python``, ``macro`` or ``executable``, told by the payload's suffix."""
        return detect_payload_kind(self.payload)


@dataclass(frozen=True)
class PinnedTest:
    """A test pinned to a commit (or to a working tree, marked ``dirty`` when that differs).

    Attributes:
        repository: URL or absolute path, credentials removed.
        ref: what the user wrote after ``@`` ('' for a bare path).
        commit: full hash, '' outside Git.
        path: of the test inside the repository.
        folder: local, read-only copy (or the working tree itself) holding the test's files.
        hashes: relative name -> sha256 of each of ``definition.files``.
    """

    definition: TestDefinition
    repository: str
    ref: str
    commit: str
    dirty: bool
    path: str
    folder: Path
    hashes: Mapping[str, str] = field(default_factory=dict)
