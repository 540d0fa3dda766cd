"""Labels for readers: names of metrics and columns, and short labels for variants.

Files and the API keep the names of the catalogue.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.value_checks import is_variant
from treehammer.hctests.definition.model import RELEASE_AXIS, Scalar, Variant, parse_axes
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX

#: Titles that the rules below would not find.
_TITLES: Mapping[str, str] = {
    "eff_job": "CPU efficiency",
    "eff_payload": "CPU efficiency of the payload",
    "eff_loop": "CPU efficiency of the event loop",
    "eff_loop_corrected": "CPU efficiency of the event loop, corrected",
    "eff_access": "CPU efficiency with staging",
    "event_rate_hz": "event rate",
    "access_rate_hz": "event rate with staging",
    "axis_root": "ROOT release",
    "axis_branches": "share of branches",
    "axis_events": "share of events",
    "axis_cache_mb": "cache size",
    "axis_cache": "page cache",
    "axis_format": "data format",
    "axis_access": "access",
    "storage_site": "site of the storage",
    "door_protocol": "protocol",
    "test_name": "test",
    "campaign_id": "campaign",
    "job_id": "job",
    "commit_id": "commit",
    "door_rtt_s": "round-trip time to the door",
    "origin_rtt_s": "round-trip time to the origin",
    "load1_start": "load at the start",
    "load1_end": "load at the end",
    "first_byte_s": "time to the first byte",
    "read_latency_hist": "read latency",
    "ctx_voluntary": "voluntary context switches",
    "ctx_involuntary": "involuntary context switches",
    "cpu_mhz": "CPU frequency",
    "cpu_steal_s": "CPU time stolen by the hypervisor",
    "dirty": "uncommitted changes",
    "rms": "RMS",
}
#: Words of a name -> words for readers.
_WORDS: Mapping[str, str] = {
    "cpu": "CPU",
    "io": "I/O",
    "os": "OS",
    "psi": "pressure stall,",
    "root": "ROOT",
    "ntuple": "RNTuple",
    "perfstats": "TTreePerfStats:",
    "libcore": "libCore",
    "lz4": "LZ4",
    "lzma": "LZMA",
    "zstd": "Zstandard",
    "rss": "resident memory",
    "mem": "memory",
    "url": "URL",
    "sha256": "SHA-256",
    "cxx": "C++",
    "python": "Python",
    "hw": "hardware",
    "sd": "standard deviation",
    "stagein": "stage-in",
    "max": "maximum",
}
#: Last words of times, after the unit is left out.
_LAST_TIME_WORDS: Mapping[str, str] = {
    **_WORDS,
    "wall": "wall time",
    "cpu": "CPU time",
    "user": "user CPU time",
    "sys": "system CPU time",
}
_UNIT_WORDS: Mapping[str, str] = {
    "s": "s",
    "us": "us",
    "ns": "ns",
    "B": "bytes",
    "Hz": "hz",
    "MB": "mb",
    "MHz": "mhz",
}
_QUANTILE = re.compile(r"p(\d+)")
#: Name of the column that holds a variant: axes and values as JSON.
VARIANT_COLUMN = "variant"

#: Identity of the work of a variant: its axes and values, or the text of one that is not JSON.
WorkKey = frozenset[tuple[str, str]] | str


@cache
def title_column(name: str) -> str:
    """Return the title of a metric or column inside a sentence, e.g. ``CPU time per event``."""
    if name in _TITLES:
        return _TITLES[name]
    metric = METRICS_BY_NAME.get(name)
    unit = metric.unit if metric else ""
    words = _drop_unit(name.removeprefix("axis_").removeprefix(EXTRA_PREFIX).split("_"), unit)
    is_per_event = len(words) > 2 and words[-2:] == ["per", "event"]
    *first, last = words[:-2] if is_per_event else words
    title_words = [_WORDS.get(word, word) for word in first]
    if title_words and (quantile := _QUANTILE.fullmatch(last)):
        title_words[-1] += ","
        title_words.append(f"{quantile[1]} % quantile")
    else:
        last_words = _LAST_TIME_WORDS if unit in ("s", "ns") else _WORDS
        title_words.append(last_words.get(last, last))
    return " ".join([*title_words, "per event"] if is_per_event else title_words)


def _drop_unit(words: list[str], unit: str) -> list[str]:
    """Drop the last word if it is the unit; bytes that were counted stay bytes."""
    is_unit = len(words) > 1 and words[-1] == _UNIT_WORDS.get(unit)
    is_counted = words[-1] == "bytes" and not {"rss", "mem", "size"} & {*words}
    return words[:-1] if is_unit and not is_counted else words


def head_column(name: str) -> str:
    """Return the title of a metric or column at the start of a sentence, e.g. ``Event rate``."""
    title = title_column(name)
    return title[:1].upper() + title[1:]


def head_axis(axis: str) -> str:
    """Return the title of an axis that can be compared, e.g. ``ROOT release`` or ``Site``."""
    column = f"axis_{axis}"
    return head_column(column if column in METRICS_BY_NAME or column in _TITLES else axis)


@lru_cache(maxsize=4096)
def _parse_axes(variant: str) -> Mapping[str, Scalar]:
    """Return the axes and values of a variant; empty if it is not a JSON object."""
    return dict(sorted(parse_axes(variant).items())) if is_variant(variant) else {}


def release_of_variant(variant: str) -> str:
    """Return the ROOT release named by a variant, '' for none."""
    return str(_parse_axes(variant).get(RELEASE_AXIS, ""))


def describe_variant(variant: str) -> str:
    """Describe all axes and values of a variant."""
    return _axes_text(variant, tuple(_parse_axes(variant)))


@dataclass(frozen=True)
class VariantLabels:
    """Shortest distinguishing labels for several variants.

    Attributes:
        names: recorded variant -> label of the axes that differ, releases of the same work adjacent.
            Equal labels mean the same work, apart from a release shown elsewhere.
        shared_text: axes that all variants have in common, '' for none.
        axes: the axes of every label, in order; empty if labels differ in their axes, or if the
            values alone do not distinguish them.
        values: label -> the values of :attr:`axes`, for places along a plot's axis.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    shared_text: str = ""
    axes: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def label(self, variant: str | None) -> str:
        """Label of one variant; a dash for none."""
        return self.names.get(variant or "") or variant or "–"

    def place(self, variant: str | None) -> int:
        """Place of one variant among all in natural order of their values; unknown ones come last."""
        return self._places.get(variant or "", len(self._places))

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {variant: place for place, variant in enumerate(self.names)}

    @property
    def note(self) -> str:
        """Sentence on the common axes, shown beside a table."""
        return f"All variants: {self.shared_text}" if self.shared_text else ""


def label_variants(variants: Iterable[str | None], *, hide_release: bool = False) -> VariantLabels:
    """Find the shortest labels that distinguish variants, without hidden releases."""
    return _label_distinct(frozenset(filter(None, variants)), hide_release)


@lru_cache(maxsize=64)
def _label_distinct(variants: frozenset[str], hide_release: bool) -> VariantLabels:
    hidden = {RELEASE_AXIS} if hide_release else set()
    recorded = sorted(variants, key=_sort_key)
    keys = {variant: _work_key(variant, hidden) for variant in recorded}
    shared = _list_shared_axes({*keys.values()})
    distinct_axes = {variant: _axes_without(variant, hidden | shared) for variant in recorded}
    labels = {variant: _axes_text(variant, axes) for variant, axes in distinct_axes.items()}
    names = _disambiguate(labels, keys)
    axes, values = _axis_values(names, distinct_axes) if len({*keys.values()}) > 1 else ((), {})
    in_order = tuple(axis for axis in _parse_axes(recorded[0]) if axis in shared) if shared else ()
    return VariantLabels(names, _axes_text(recorded[0], in_order) if shared else "", axes, values)


def _axes_without(variant: str, left_out: Collection[str]) -> tuple[str, ...]:
    return tuple(axis for axis in _parse_axes(variant) if axis not in left_out)


def _work_key(variant: str, hidden: Collection[str]) -> WorkKey:
    """Return axes with values and types, because 1, 1.0 and true are equal in Python."""
    axes = _parse_axes(variant)
    if not axes:
        return variant
    return frozenset((axis, repr(axes[axis])) for axis in _axes_without(variant, hidden))


def _list_shared_axes(keys: Collection[WorkKey]) -> set[str]:
    """List the axes that have the same value in all of several variants."""
    works = [key for key in keys if isinstance(key, frozenset)]
    is_common = len(works) == len(keys) > 1
    return {axis for axis, _ in frozenset.intersection(*works)} if is_common else set()


def _disambiguate(labels: Mapping[str, str], keys: Mapping[str, WorkKey]) -> dict[str, str]:
    """Replace labels that different variants share by the recorded variants."""
    keys_by_label: dict[str, set[WorkKey]] = defaultdict(set)
    for variant, label in labels.items():
        keys_by_label[label].add(keys[variant])
    return {
        variant: label if len(keys_by_label[label]) == 1 else variant
        for variant, label in labels.items()
    }


def _axis_values(
    names: Mapping[str, str], distinct_axes: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the axes of all names with each name's values; empty if they do not distinguish the names."""
    if len({*distinct_axes.values()}) != 1:
        return (), {}
    axes = next(iter(distinct_axes.values()))
    values = {
        name: " · ".join(_axes_text(variant, (axis,)).removeprefix(f"{axis}=") for axis in axes)
        for variant, name in names.items()
    }
    distinct = axes and len({*values.values()}) == len(values)
    return (axes, values) if distinct else ((), {})


def _sort_key(variant: str) -> tuple[object, ...]:
    axes = _parse_axes(variant)
    if not axes:
        return 1, natural_sort_key(variant)
    values = [(axis, natural_sort_key(axes[axis])) for axis in axes if axis != RELEASE_AXIS]
    return 0, tuple(values), natural_sort_key(release_of_variant(variant)), variant


def _axes_text(variant: str, axes: tuple[str, ...]) -> str:
    parsed = tuple(_parse_axes(variant).items())
    try:
        return Variant(parsed).label(axes) if parsed else variant
    except OverflowError:  # an integer beyond the range of floats
        return variant
