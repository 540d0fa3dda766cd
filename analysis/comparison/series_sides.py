"""Series of a comparison: the executions of both sides, and their labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from treehammer.analysis.samples.job_pairs import RoundKey
from treehammer.analysis.samples.sample import (
    Sample,
    comparison_key,
    find_varying_axes,
    natural_sort_key,
    release_key,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.hctests.matrix.definition import DATASET_AXIS, FORMAT_AXIS, Scalar


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


def split_sides(samples: Iterable[Sample], axis: str, a: Scalar, b: Scalar) -> list[SeriesSides]:
    """Group timed executions that have value ``a`` or ``b`` on ``axis`` by comparison key."""
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
            elsewhere[key].add((sample.job_id, sample.attempt, sample.round))
    label = label_series([*chain.from_iterable(chain.from_iterable(sides.values()))], axis)
    series_list = []
    for key, (side_a, side_b) in sides.items():
        first = (side_a or side_b)[0]
        series_list.append(
            SeriesSides(
                key=key,
                release=release_key(first, axis),
                label=label[release_key(first, axis)],
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


def label_series(samples: Sequence[Sample], axis: str) -> Mapping[str, str]:
    """Map release keys to their shortest distinguishing names among these samples.

    Args:
        samples: executions of all series.
        axis: the compared axis, which names leave out; '' for none.
    """
    varying = tuple(name for name in find_varying_axes(s.variant for s in samples) if name != axis)
    one_test = len({sample.test_name for sample in samples}) == 1
    by_release = {release_key(sample, axis): sample for sample in samples}
    with_storage = axis != "storage_site"
    has_datasets = len({sample.dataset for sample in samples}) > 1
    with_dataset = has_datasets and axis not in (DATASET_AXIS, FORMAT_AXIS)
    labels = {
        key: " ".join(
            [_label_sample(sample, varying, one_test=one_test, with_storage=with_storage)]
            + [f"dataset={sample.dataset}"] * with_dataset
        )
        for key, sample in by_release.items()
    }
    doubled = Counter(labels.values())
    return {
        key: f"{text} ({_identify_test(by_release[key])})" if doubled[text] > 1 else text
        for key, text in labels.items()
    }


def _label_sample(
    sample: Sample, axes: Sequence[str], *, one_test: bool, with_storage: bool
) -> str:
    """Name a sample by its values of ``axes``, by its test if there are several, and its storage."""
    present = dict(sample.variant.values)
    named = tuple(name for name in axes if name in present)
    text = sample.variant.label(named) if named else ""
    words = [text] if one_test and text else [sample.test_name, text]
    words += [f"storage={sample.storage_site}"] if with_storage and sample.is_remote else []
    return " ".join(word for word in words if word)


def _identify_test(sample: Sample) -> str:
    return f"{sample.test_hash[:8]} {sample.door_protocol}"


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
