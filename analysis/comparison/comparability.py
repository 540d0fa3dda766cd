"""Whether two sides may be compared at all: are the builds alike, and did both read the same values?"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from treehammer.analysis.samples.sample import BUILD_FACTS, Sample, natural_sort_key
from treehammer.collectors.job_spec import CHECKSUM
from treehammer.hctests.matrix.definition import DATASET_AXIS

#: Where a distributor writes its package into GCC's version: "14.2.1 20250110 (Red Hat 14.2.1-7)".
_DISTRIBUTOR_PACKAGE = re.compile(r"(?<=\d) \([^()]*\)$")

_RELEASE_FACTS = ("root_version", "root_commit")
_LIBRARY_FACTS = {
    "zlib_version": "zlib",
    "lzma_version": "lzma",
    "lz4_version": "lz4",
    "zstd_version": "zstd",
}


@dataclass(frozen=True)
class BuildDifference:
    """Differences between two builds apart from the compared axis, as text for people.

    ``differing`` (fact -> its change) forbids crediting the axis.  ``bundled`` names libraries that
    both builds bring along in ROOT's own sources: their change belongs to the release.
    ``repackaged`` names compilers of the same version and snapshot from another package of a
    distributor.  ``unknown`` names facts that one side recorded and the other did not.
    """

    differing: Mapping[str, str]
    bundled: tuple[str, ...]
    repackaged: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Every fact that differs, with its change."""
        return tuple(f"{fact} {change}" for fact, change in self.differing.items())


def compare_builds(a: Iterable[Sample], b: Iterable[Sample], axis: str) -> BuildDifference:
    """Compare the ROOT builds of both sides; on the axis ``root`` version and commit may differ.

    They may differ between the sides: a side that holds two of them is not one release.
    """
    a, b = list(a), list(b)
    facts = BUILD_FACTS if axis == "root" else (*_RELEASE_FACTS, *BUILD_FACTS)
    builtin = _collect_features(a) & _collect_features(b)
    differing, bundled, repackaged, unknown = dict(_find_mixed_releases(a, b, axis)), [], [], []
    for fact in facts:
        values_a, values_b = _fact_values(a, fact), _fact_values(b, fact)
        name = _LIBRARY_FACTS.get(fact, fact.removeprefix("root_").replace("_", " "))
        if values_a == values_b:
            continue
        if not values_a or not values_b:
            unknown.append(name)
        elif fact == "root_features":
            differing[name] = _describe_feature_changes(a, b)
        elif fact == "root_compiler" and _strip_package(values_a) == _strip_package(values_b):
            repackaged.append(f"{_join_values(values_a)} → {_join_values(values_b)}")
        elif f"builtin_{name}" in builtin:
            bundled.append(f"{name} {_join_values(values_a)} → {_join_values(values_b)}")
        else:
            differing[name] = f"{_join_values(values_a)} → {_join_values(values_b)}"
    return BuildDifference(differing, tuple(bundled), tuple(repackaged), tuple(unknown))


def _find_mixed_releases(
    a: Sequence[Sample], b: Sequence[Sample], axis: str
) -> Iterator[tuple[str, str]]:
    if axis == "root":
        for side, samples in (("A", a), ("B", b)):
            for fact in _RELEASE_FACTS:
                if len(values := _fact_values(samples, fact)) > 1:
                    yield f"{fact.removeprefix('root_')} within side {side}", _join_values(values)


def _fact_values(samples: Sequence[Sample], fact: str) -> frozenset[str]:
    return frozenset(value for sample in samples if (value := sample.build.get(fact)))


def _strip_package(compilers: Iterable[str]) -> frozenset[str]:
    """Return GCC's name, version and snapshot, without the distributor's package."""
    return frozenset(_DISTRIBUTOR_PACKAGE.sub("", compiler) for compiler in compilers)


def _join_values(values: Iterable[str]) -> str:
    return " and ".join(sorted(values, key=natural_sort_key))


def _collect_features(samples: Sequence[Sample]) -> set[str]:
    return {word for text in _fact_values(samples, "root_features") for word in text.split()}


def _describe_feature_changes(a: Sequence[Sample], b: Sequence[Sample]) -> str:
    features_a, features_b = _collect_features(a), _collect_features(b)
    changes = [f"-{word}" for word in sorted(features_a - features_b)]
    changes += [f"+{word}" for word in sorted(features_b - features_a)]
    return " ".join(changes) or "differ between nodes"


class DataComparison(Enum):
    """Compare the value checksums of both sides."""

    PROVEN = "same data proven"
    DIFFERS = "values differ"
    OTHER_CONTENT = "datasets of different content"
    ALTERED = "not the dataset's content"
    UNCHECKED = "not checked"

    @property
    def forbids_comparison(self) -> bool:
        """Whether nothing may be compared."""
        return self in (DataComparison.DIFFERS, DataComparison.ALTERED)


#: Dataset hash, requested ROOT, site, storage site and door: one untimed checksum execution covers each.
ChecksumSlot = tuple[str, str, str, str, str]
#: The digest with its version and the leaves that it skips.
ValueDigest = tuple[str, tuple[int, frozenset[str]]]
ChecksumsBySlot = Mapping[ChecksumSlot, frozenset[ValueDigest]]

#: Stands for the checksum of values that were not even read: the file is not the dataset's.
_ALTERED: ValueDigest = ("altered", (0, frozenset()))


def collect_checksums(samples: Iterable[Sample]) -> ChecksumsBySlot:
    """Collect the value checksums of every slot that has one, with the leaves they do not cover.

    A checksum execution of class ``data-check`` found other content than the dataset's.
    """
    digests: dict[ChecksumSlot, set[ValueDigest]] = defaultdict(set)
    for sample in samples:
        if sample.value_checksum and not sample.failure_class:
            digests[_checksum_slot(sample)].add((sample.value_checksum, _checksum_coverage(sample)))
        elif sample.kind == CHECKSUM and sample.failure_class == "data-check":
            digests[_checksum_slot(sample)].add(_ALTERED)
    return {slot: frozenset(values) for slot, values in digests.items()}


def compare_data(
    a: Iterable[Sample], b: Iterable[Sample], checksums: ChecksumsBySlot, axis: str = ""
) -> DataComparison:
    """Return whether both sides are proven to have read the same values.

    ``OTHER_CONTENT`` when datasets are compared and their values differ.

    ``ALTERED`` when one of them met another file: both releases may agree on its wrong values.
    ``UNCHECKED`` when a side has no checksum, when both share one execution (the axis changes
    neither release nor door), or when the checksums cover different leaves or are of two versions.
    """
    slots_a, slots_b = set(map(_checksum_slot, a)), set(map(_checksum_slot, b))
    slots = slots_a | slots_b
    digests = set[ValueDigest]().union(*(checksums.get(slot, ()) for slot in slots))
    if _ALTERED in digests:
        return DataComparison.ALTERED
    if slots_a & slots_b:
        return DataComparison.UNCHECKED
    if len({extent for _, extent in digests}) > 1:
        return DataComparison.UNCHECKED
    if len({digest for digest, _ in digests}) > 1:
        return _differ_by_axis(axis)
    complete = slots <= checksums.keys()
    return DataComparison.PROVEN if complete and digests else DataComparison.UNCHECKED


def _differ_by_axis(axis: str) -> DataComparison:
    return DataComparison.OTHER_CONTENT if axis == DATASET_AXIS else DataComparison.DIFFERS


def _checksum_coverage(sample: Sample) -> tuple[int, frozenset[str]]:
    """Return version and names of omitted leaves; a TTree and an RNTuple name types, and
    where a branch has a dot its field has an underscore, each in its own way."""
    try:
        leaves = [str(leaf) for leaf in json.loads(sample.checksum_skipped_leaves or "[]")]
    except (ValueError, TypeError):  # the payload's own writing
        leaves = [sample.checksum_skipped_leaves]
    names = (leaf.split(" (", 1)[0].replace(".", "_") for leaf in leaves)
    return sample.checksum_version, frozenset(names)


def _checksum_slot(sample: Sample) -> ChecksumSlot:
    return (
        sample.dataset_hash,
        str(sample.axis_value("root") or ""),
        sample.site,
        sample.storage_site,
        sample.door,
    )
