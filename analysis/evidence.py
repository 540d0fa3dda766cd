"""Whether two sides may be compared at all: are the builds alike, and did both read the same values?"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from treehammer.analysis.samples import BUILD_FACTS, Sample
from treehammer.collectors.job import CHECKSUM

#: Where a distributor writes its package into GCC's version: "14.2.1 20250110 (Red Hat 14.2.1-7)".
_PACKAGE = re.compile(r"(?<=\d) \([^()]*\)$")

_RELEASE_FACTS = ("root_version", "root_commit")
_LIBRARIES = {
    "zlib_version": "zlib",
    "lzma_version": "lzma",
    "lz4_version": "lz4",
    "zstd_version": "zstd",
}


@dataclass(frozen=True)
class BuildDifference:
    """What tells two builds apart beside the compared axis; all text is for people.

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


def build_difference(a: Iterable[Sample], b: Iterable[Sample], axis: str) -> BuildDifference:
    """Compare the ROOT builds of both sides; on the axis ``root`` version and commit may differ.

    They may differ between the sides: a side that holds two of them is no one release.
    """
    a, b = list(a), list(b)
    facts = BUILD_FACTS if axis == "root" else (*_RELEASE_FACTS, *BUILD_FACTS)
    builtin = _features(a) & _features(b)
    differing, bundled, repackaged, unknown = dict(_mixed(a, b, axis)), [], [], []
    for fact in facts:
        left, right = _values(a, fact), _values(b, fact)
        name = _LIBRARIES.get(fact, fact.removeprefix("root_").replace("_", " "))
        if left == right:
            continue
        if not left or not right:
            unknown.append(name)
        elif fact == "root_features":
            differing[name] = _changed_features(a, b)
        elif fact == "root_compiler" and _unpackaged(left) == _unpackaged(right):
            repackaged.append(f"{_shown(left)} → {_shown(right)}")
        elif f"builtin_{name}" in builtin:
            bundled.append(f"{name} {_shown(left)} → {_shown(right)}")
        else:
            differing[name] = f"{_shown(left)} → {_shown(right)}"
    return BuildDifference(differing, tuple(bundled), tuple(repackaged), tuple(unknown))


def _mixed(a: Sequence[Sample], b: Sequence[Sample], axis: str) -> Iterator[tuple[str, str]]:
    if axis == "root":
        for side, samples in (("A", a), ("B", b)):
            for fact in _RELEASE_FACTS:
                if len(found := _values(samples, fact)) > 1:
                    yield f"{fact.removeprefix('root_')} within side {side}", _shown(found)


def _values(samples: Sequence[Sample], fact: str) -> frozenset[str]:
    return frozenset(sample.build[fact] for sample in samples if sample.build[fact])


def _unpackaged(compilers: Iterable[str]) -> frozenset[str]:
    """GCC's own name, version and snapshot, without the distributor's package behind it."""
    return frozenset(_PACKAGE.sub("", compiler) for compiler in compilers)


def _shown(values: Iterable[str]) -> str:
    return " and ".join(sorted(values))


def _features(samples: Sequence[Sample]) -> set[str]:
    return {word for text in _values(samples, "root_features") for word in text.split()}


def _changed_features(a: Sequence[Sample], b: Sequence[Sample]) -> str:
    before, after = _features(a), _features(b)
    changes = [f"-{word}" for word in sorted(before - after)]
    changes += [f"+{word}" for word in sorted(after - before)]
    return " ".join(changes) or "differ between nodes"


class SameData(Enum):
    """What the value checksums say of both sides."""

    PROVEN = "same data proven"
    DIFFERS = "values differ"
    ALTERED = "not the dataset's content"
    UNCHECKED = "not checked"

    @property
    def refuses(self) -> bool:
        """Whether nothing may be compared."""
        return self in (SameData.DIFFERS, SameData.ALTERED)


#: Dataset hash, ROOT asked for, site and door: one untimed checksum execution covers each.
Slot = tuple[str, str, str, str]
#: The digest, and what it is of: its version and the leaves that it leaves out.
Digest = tuple[str, tuple[int, frozenset[str]]]
Checksums = Mapping[Slot, frozenset[Digest]]

#: Stands for the checksum of values that were not even read: the file is not the dataset's.
_ALTERED: Digest = ("altered", (0, frozenset()))


def checksums(samples: Iterable[Sample]) -> Checksums:
    """The value checksums, with the leaves they do not cover, of every slot that has one.

    A checksum execution of class ``sanity`` found other content than the dataset's.
    """
    found: dict[Slot, set[Digest]] = defaultdict(set)
    for sample in samples:
        if sample.value_checksum and not sample.failure_class:
            found[_slot(sample)].add((sample.value_checksum, _extent(sample)))
        elif sample.kind == CHECKSUM and sample.failure_class == "sanity":
            found[_slot(sample)].add(_ALTERED)
    return {slot: frozenset(values) for slot, values in found.items()}


def same_data(a: Iterable[Sample], b: Iterable[Sample], known: Checksums) -> SameData:
    """Whether both sides are proven to have read the same values.

    ``ALTERED`` when one of them met another file: both releases may agree on its wrong values.
    ``UNCHECKED`` when a side has no checksum, when both share one execution (the axis changes
    neither release nor door), or when the checksums cover different leaves or are of two versions.
    """
    slots_a, slots_b = {_slot(s) for s in a}, {_slot(s) for s in b}
    found = {value for slot in slots_a | slots_b for value in known.get(slot, ())}
    if _ALTERED in found:
        return SameData.ALTERED
    if slots_a & slots_b:
        return SameData.UNCHECKED
    if len({extent for _, extent in found}) > 1:
        return SameData.UNCHECKED
    if len({digest for digest, _ in found}) > 1:
        return SameData.DIFFERS
    complete = all(slot in known for slot in slots_a | slots_b)
    return SameData.PROVEN if complete and found else SameData.UNCHECKED


def _extent(sample: Sample) -> tuple[int, frozenset[str]]:
    """Version and names of the leaves that are left out; a TTree and an RNTuple name types, and
    where a branch has a dot its field has an underscore, each in its own way."""
    try:
        leaves = [str(leaf) for leaf in json.loads(sample.checksum_uncovered or "[]")]
    except (ValueError, TypeError):  # the payload's own writing
        leaves = [sample.checksum_uncovered]
    names = (leaf.split(" (", 1)[0].replace(".", "_") for leaf in leaves)
    return sample.checksum_version, frozenset(names)


def _slot(sample: Sample) -> Slot:
    return (
        sample.dataset_hash,
        str(sample.axis_value("root") or ""),
        sample.site,
        sample.door,
    )
