"""Series of a comparison: the executions of both sides, their labels, and whether they are comparable.

Sides are comparable if their builds are alike and both read the same values.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from operator import attrgetter, itemgetter

from treehammer.analysis.comparison.verdict_text import DOOR_WORD
from treehammer.analysis.statistics.job_pairs import RoundKey
from treehammer.analysis.statistics.sample import (
    BUILD_FACTS,
    NODE_FACTS,
    Sample,
    comparison_key,
    find_varying_axes,
    natural_sort_key,
    release_key,
)
from treehammer.collectors.job_spec import CHECKSUM, CLING, TIMED
from treehammer.hctests.definition.model import DATASET_AXIS, FORMAT_AXIS, Scalar

#: Where a distributor writes its package into GCC's version: "14.2.1 20250110 (Red Hat 14.2.1-7)".
_DISTRIBUTOR_PACKAGE = re.compile(r"(?<=\d) \([^()]*\)$")

#: Values of a fact that are named of one side's nodes.
MAX_NODE_VALUES = 3
_RELEASE_FACTS = ("root_version", "root_commit")
#: Facts that follow from the architecture.
_ARCHITECTURE_FACTS = ("root_platform", "root_flags")
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
    excluded = {"root": _RELEASE_FACTS, "architecture": _ARCHITECTURE_FACTS}.get(axis, ())
    builtin = _collect_features(a) & _collect_features(b)
    differing = _find_mixed_releases(a, b, axis)
    bundled, repackaged, unknown = [], [], []
    for fact in (*_RELEASE_FACTS, *BUILD_FACTS):
        values_a, values_b = _fact_values(a, fact), _fact_values(b, fact)
        name = _LIBRARY_FACTS.get(fact, fact.removeprefix("root_").replace("_", " "))
        if fact in excluded or values_a == values_b:
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


def compare_nodes(a: Iterable[Sample], b: Iterable[Sample]) -> tuple[str, ...]:
    """Describe the facts in which the nodes of both sides differ: in unpaired sides often several."""
    nodes_a, nodes_b = ([sample.node for sample in side] for side in (a, b))
    differences = []
    for fact in NODE_FACTS:
        values_a, values_b = (
            {value for node in nodes if (value := node.get(fact))} for nodes in (nodes_a, nodes_b)
        )
        if values_a != values_b and values_a and values_b:
            change = " → ".join(map(_join_first, (values_a, values_b)))
            differences.append(f"{fact.replace('_', ' ').replace('cpu', 'CPU')} {change}")
    return tuple(differences)


def _join_first(values: Collection[str]) -> str:
    """Join the first values, with the number of the others."""
    names = sorted(values, key=natural_sort_key)
    more = len(names) - MAX_NODE_VALUES
    return " and ".join([*names[:MAX_NODE_VALUES], *([f"{more} more"] if more > 0 else [])])


def _find_mixed_releases(a: Sequence[Sample], b: Sequence[Sample], axis: str) -> dict[str, str]:
    """On the axis ``root``, find the facts of a release that have several values within one side."""
    return {
        f"{fact.removeprefix('root_')} within side {side}": _join_values(values)
        for side, samples in (("A", a), ("B", b))
        for fact in (_RELEASE_FACTS if axis == "root" else ())
        if len(values := _fact_values(samples, fact)) > 1
    }


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
    a: Sequence[Sample], b: Sequence[Sample], checksums: ChecksumsBySlot, axis: str
) -> DataComparison:
    """Return whether both sides are proven to have read the same values.

    ``OTHER_CONTENT`` when datasets are compared and their values differ. Loops that count other
    numbers of events read other values, unless the axis is ``events``.

    ``ALTERED`` when one of them met another file: both releases may agree on its wrong values.
    ``UNCHECKED`` when a side has no checksum, when both share one execution (the axis changes
    neither release nor door), or when the checksums cover different leaves or are of two versions.
    """
    slots_a, slots_b = set(map(_checksum_slot, a)), set(map(_checksum_slot, b))
    slots = slots_a | slots_b
    digests = set[ValueDigest]().union(*(checksums.get(slot, ()) for slot in slots))
    if _ALTERED in digests:
        return DataComparison.ALTERED
    other = DataComparison.OTHER_CONTENT if axis == DATASET_AXIS else DataComparison.DIFFERS
    usable = (sample for sample in (*a, *b) if sample.plausible and not sample.failure_class)
    if axis != "events" and len({sample.events_read for sample in usable} - {None}) > 1:
        return other
    if slots_a & slots_b or len(set(map(itemgetter(1), digests))) > 1:
        return DataComparison.UNCHECKED
    if len(set(map(itemgetter(0), digests))) > 1:
        return other
    complete = slots <= checksums.keys()
    return DataComparison.PROVEN if complete and digests else DataComparison.UNCHECKED


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


@dataclass(frozen=True)
class SeriesSides:
    """Both sides of one comparison key; ``site`` names both sites when sites are compared.

    ``elsewhere`` holds the rounds in which the same jobs ran other values of the compared axis.
    """

    key: str
    release: str
    label: str
    site: str
    a: tuple[Sample, ...]
    b: tuple[Sample, ...]
    elsewhere: frozenset[RoundKey] = frozenset()

    @property
    def unit(self) -> str:
        """The unit that measured the storage once: a job, or a common start of jobs."""
        return "start" if any(sample.start_planned_us for sample in self.a) else "job"


def split_sides(samples: Iterable[Sample], axis: str, a: Scalar, b: Scalar) -> list[SeriesSides]:
    """Group timed executions that have value ``a`` or ``b`` on ``axis`` by comparison key.

    Executions whose loop ROOT's interpreter compiled are series of their own, unless all of one side
    are such and none of the other: then the compiler is a difference of the builds.
    """
    sides: dict[str, tuple[list[Sample], list[Sample]]] = defaultdict(lambda: ([], []))
    elsewhere: dict[str, set[RoundKey]] = defaultdict(set)
    for sample in samples:
        value = sample.axis_value(axis)
        if sample.kind != TIMED or value is None:
            continue
        key = comparison_key(sample, axis)
        if value in (a, b):
            sides[key][0 if value == a else 1].append(sample)
        else:
            elsewhere[key].add((*sample.unit, sample.round))
    _join_compilers(sides)
    labels = label_series([*chain.from_iterable(chain.from_iterable(sides.values()))], axis)
    series_list = []
    for key, (side_a, side_b) in sides.items():
        first = min((*side_a, *side_b), key=lambda sample: sample.is_interpreted)
        series_list.append(
            SeriesSides(
                key=key,
                release=release_key(first, axis),
                label=labels[key],
                site=f"{a} → {b}" if axis == "site" else first.site,
                a=tuple(side_a),
                b=tuple(side_b),
                elsewhere=frozenset(elsewhere[key]),
            )
        )
    return sorted(
        series_list,
        key=lambda series: (natural_sort_key(series.label), natural_sort_key(series.site)),
    )


def _join_compilers(sides: dict[str, tuple[list[Sample], list[Sample]]]) -> None:
    """Join series of which one has only side A and the other, by another compiler, only side B."""
    for key in [key for key in sides if key.endswith(f"/{CLING}")]:
        compiled, interpreted = sides.get(key.removesuffix(f"/{CLING}"), ([], [])), sides[key]
        one_sided = [bool(a) != bool(b) for a, b in (compiled, interpreted)]
        if all(one_sided) and bool(compiled[0]) != bool(interpreted[0]):
            for side, other in zip(compiled, interpreted, strict=True):
                side.extend(other)
            del sides[key]


#: Axis of results of other tools.
_COMMAND = "command"


def label_series(samples: Sequence[Sample], axis: str) -> Mapping[str, str]:
    """Map comparison keys to their shortest distinguishing names among these samples.

    Args:
        samples: executions of all series.
        axis: the compared axis, which names leave out; '' for none.
    """
    tests, datasets, compilers = (
        set(map(attrgetter(name), samples)) for name in ("test_name", "dataset", "is_interpreted")
    )
    varying_axes = find_varying_axes(map(attrgetter("variant"), samples))
    # Where nothing else distinguishes series, the command does.
    varying = tuple(name for name in varying_axes if name != axis) or (*({_COMMAND} - {axis}),)
    by_key = {comparison_key(sample, axis): sample for sample in samples}
    distinctive = {
        "storage": axis != "storage_site",
        "dataset": len(datasets) > 1 and axis not in (DATASET_AXIS, FORMAT_AXIS),
        "loop": len(compilers) > 1,
    }
    # Series of one release have one name, also where a test was renamed.
    by_release = {release_key(sample, axis): sample for sample in by_key.values()}
    names = {
        release: _label_sample(sample, varying, distinctive, one_test=len(tests) == 1)
        for release, sample in by_release.items()
    }
    doubled = Counter(names.values())
    with_data = len(set(map(attrgetter("dataset_hash"), samples))) > len(datasets)
    labels: dict[str, str] = {}
    doors: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, sample in by_key.items():
        release = release_key(sample, axis)
        labels[key] = names[release]
        if doubled[names[release]] > 1:
            labels[key] += f" ({_list_hashes(by_release[release], with_data)})"
        doors[labels[key], sample.site].add(sample.door)
    for key, sample in by_key.items():
        if len(doors[labels[key], sample.site]) > 1:
            labels[key] += f"{DOOR_WORD}{sample.door}"
    return labels


def _list_hashes(sample: Sample, with_data: bool) -> str:
    data = f" data {sample.dataset_hash.rpartition(':')[2][:8]}" if with_data else ""
    return f"{sample.test_hash[:8]} {sample.door_protocol}{data}"


def _label_sample(
    sample: Sample,
    axes: tuple[str, ...],
    distinctive: Mapping[str, bool],
    *,
    one_test: bool,
) -> str:
    """Name a sample by its values of ``axes``, and by the ``distinctive`` facts that it has."""
    present_axes = {*axes} & {*dict(sample.variant.values)}
    text = sample.variant.label(axes) if present_axes else ""
    words = [text] if one_test and text else [sample.test_name, text]
    facts = {
        "storage": sample.storage_site if sample.storage_site != sample.site else "",
        "dataset": sample.dataset,
        "loop": CLING if sample.is_interpreted else "",
    }
    words += [f"{name}={value}" for name, value in facts.items() if value and distinctive[name]]
    return " ".join(filter(None, words))


#: Columns that together single out the executions of one side of a series.
_IDENTIFYING_COLUMNS = (
    "test_name",
    "test_hash",
    "dataset",
    "dataset_hash",
    "content_hash",
    "site",
    "storage_site",
    "door",
    "door_protocol",
    "instrument_version",
)


def common_values(side: Iterable[Sample]) -> dict[str, str | int]:
    """Return the columns in which all these executions agree, with the value to select them by."""
    values_by_column: dict[str, set[str | int]] = defaultdict(set)
    for sample in side:
        values_by_column["variant"].add(sample.variant.canonical_json)
        for name in _IDENTIFYING_COLUMNS:
            values_by_column[name].add(getattr(sample, name))
    common = {
        name: value
        for name, values in values_by_column.items()
        if len(values) == 1
        for value in values
        if value
    }
    if common.get("storage_site") == common.get("site"):
        common.pop("storage_site", None)
    return common


def list_servers(side: Iterable[Sample]) -> tuple[str, ...]:
    """List the versions that storage servers reported to these executions."""
    versions = {sample.server_version for sample in side} - {""}
    return tuple(sorted(versions, key=natural_sort_key))
