"""Measurements as samples, and the keys by which they are compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.collectors.job_spec import CLING, total_cpu_s
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.judged_metrics import DEFAULT_HEADLINE, HeadlineMetric
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    Scalar,
    Variant,
    compute_comparison_key,
    identify_commit,
)

#: The metrics that releases are judged on unless their test states others: seconds per event.
HEADLINE_METRICS = tuple(metric.name for metric in DEFAULT_HEADLINE)

#: Headline metric -> column with ln(B/A) of a launch in paired mode, on side B alone.
LAUNCH_RATIOS: Mapping[str, str] = {
    "cpu_per_event_s": "segment_cpu_log_ratio",
    "wall_per_event_s": "segment_wall_log_ratio",
}

#: Plausible times of an event or a loop (seconds: a picosecond to eleven days).  Ratios and powers
#: of numbers outside would overflow.
POSSIBLE_RANGE_S = (1e-12, 1e6)
#: The same for headline metrics that a test states, in any unit.
POSSIBLE_RANGE = (1e-12, 1e18)

#: Facts of a ROOT build and of the loop's compiler, in addition to version and commit.
BUILD_FACTS = (
    "root_platform",
    "root_compiler",
    "root_flags",
    "root_cxx_standard",
    "root_features",
    "zlib_version",
    "lzma_version",
    "lz4_version",
    "zstd_version",
    "loop_compiler",
)

#: Facts of the nodes, which comparisons name where sides differ in them.
NODE_FACTS = ("cpu_model", "os_name", "kernel", "container")

#: Properties outside the variant that can be compared like an axis -> attribute of a sample.
CONTEXT_AXES: Mapping[str, str] = {
    "site": "site",
    "storage_site": "storage_site",
    "door": "door",
    "campaign": "campaign_id",
    "dataset": "dataset",
    "server_version": "server_version",
    "origin_version": "origin_version",
    "cache_block_kib": "cache_block_kib",
    "architecture": "architecture",
    COMMIT_AXIS: "commit",
}

#: Axis on which two selections are compared; their common properties form the series.
SELECTION_AXIS = "selection"

_TEXT_COLUMNS = (
    "measurement_id",
    "kind",
    "job_id",
    "campaign_id",
    "test_name",
    "test_hash",
    "dataset",
    "dataset_hash",
    "site",
    "storage_site",
    "door",
    "door_protocol",
    "host",
    "machine",
    "failure_class",
    "implausible_reasons",
    "value_checksum",
    "checksum_skipped_leaves",
    "root_version",
    "root_commit",
    "server_version",
    "origin_version",
    "architecture",
    "commit_id",
    "test_path",
    "content_hash",
)

#: The columns a :class:`Sample` is made of, to ask the store for.
SAMPLE_COLUMNS: tuple[str, ...] = (
    *_TEXT_COLUMNS,
    *BUILD_FACTS,
    *NODE_FACTS,
    *HEADLINE_METRICS,
    *LAUNCH_RATIOS.values(),
    "variant",
    "attempt",
    "repeat",
    "round",
    "started_us",
    "instrument_version",
    "checksum_version",
    "dirty",
    "plausible",
    "loop_fallback",
    "cache_block_kib",
    "loop_cpu_s",
    "passes_counted",
    "events_read",
    "own_text_bytes",
    "start_planned_us",
)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement as analysis sees it.

    Text that is not known is ``''``.  ``metrics`` holds the metrics of ``headline`` that were recorded,
    ``loop_cpu_s`` is the loop's CPU over all counted passes (see
    :func:`~treehammer.collectors.job_spec.total_cpu_s`; None where it was not measured),
    ``build`` holds the facts of the ROOT build (:data:`BUILD_FACTS` with version and commit),
    ``node`` those of :data:`NODE_FACTS`.
    ``launch_ratios`` holds ln(B/A) of a launch in paired mode by headline metric, on its side B
    alone.  ``is_interpreted`` tells whether ROOT's interpreter compiled the loop: such executions form
    series of their own.  ``shares_text`` tells whether its program ran from physical
    pages that all launches share, in paired mode.  ``side`` names the selection that it belongs to where two selections are compared,
    ``setup`` is the :func:`~treehammer.hctests.definition.model.compute_setup` of its campaign where
    commits are, ``looks`` counts the looks at it, and ``look_share`` is the share of the error rate that
    the last of them has (see :class:`~treehammer.sql.core.campaign_plan.SequentialPlan`).
    ``start_planned_us`` is the common start of its load, 0 without one; all hosts of such loads are one,
    since starts on any of them are independent.
    """

    measurement_id: str
    kind: str
    job_id: str
    campaign_id: str
    test_name: str
    test_hash: str
    dataset: str = ""
    dataset_hash: str = ""
    site: str
    door: str
    door_protocol: str
    host: str
    failure_class: str = ""
    implausible_reasons: str = ""
    value_checksum: str = ""
    checksum_skipped_leaves: str = ""
    variant: Variant
    attempt: int = 1
    round: int = 1
    instrument_version: int
    dirty: bool = False
    plausible: bool = True
    is_interpreted: bool = False
    shares_text: bool = False
    loop_cpu_s: float | None
    events_read: int | None = None
    metrics: Mapping[str, float]
    build: Mapping[str, str] = field(default_factory=dict)
    node: Mapping[str, str] = field(default_factory=dict)
    checksum_version: int = 0
    content_hash: str = ""
    side: str = ""
    launch_ratios: Mapping[str, float] = field(default_factory=dict)
    storage_site: str = ""
    server_version: str = ""
    origin_version: str = ""
    cache_block_kib: int | None = None
    architecture: str = ""
    machine: str = ""
    headline: tuple[HeadlineMetric, ...] = DEFAULT_HEADLINE
    commit_id: str = ""
    test_path: str = ""
    setup: str = ""
    started_us: int = 0
    looks: int = 1
    look_share: float = 1.0
    start_planned_us: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Sample:
        """Build one from a row of the store that holds :data:`SAMPLE_COLUMNS`.

        Rows of :func:`~treehammer.analysis.statistics.headline_rows.load_headline_rows` hold the
        headline of their test as well, and its metrics.
        """
        headline: tuple[HeadlineMetric, ...] = row.get("headline", DEFAULT_HEADLINE)
        text = _select_text(row, _TEXT_COLUMNS)
        if start_us := row.get("start_planned_us") or 0:
            text["host"], text["machine"] = f"clients at {text['site']}", ""
        build = {name: text.pop(name) for name in ("root_version", "root_commit")}
        build |= _select_text(row, BUILD_FACTS)
        cpu_s: float | None = row.get("loop_cpu_s")  # the median of one pass
        return cls(
            **text,
            variant=parse_variant(row["variant"]),
            attempt=row["attempt"],
            round=row["round"],
            instrument_version=row["instrument_version"],
            dirty=bool(row["dirty"]),
            cache_block_kib=row.get("cache_block_kib"),
            plausible=bool(row["plausible"]),
            is_interpreted=row.get("loop_compiler") == CLING or bool(row.get("loop_fallback")),
            shares_text=row.get("own_text_bytes") == 0,
            loop_cpu_s=cpu_s and total_cpu_s(cpu_s, row.get("passes_counted") or 1),
            events_read=row.get("events_read"),
            metrics=_select_recorded(row, {metric.name: metric.name for metric in headline}),
            build=build,
            node=_select_text(row, NODE_FACTS),
            checksum_version=row.get("checksum_version") or 0,
            launch_ratios=_select_recorded(row, LAUNCH_RATIOS),
            headline=headline,
            started_us=row.get("started_us") or 0,
            looks=row.get("looks", 1),
            look_share=row.get("look_share", 1.0),
            start_planned_us=start_us,
        )

    @property
    def unit(self) -> tuple[str, int]:
        """The unit that it measures, see :func:`identify_unit`."""
        return identify_unit(vars(self))

    @property
    def commit(self) -> str | None:
        """Value on the axis ``commit``, see :func:`.identify_commit`; None outside Git."""
        return identify_commit(self.commit_id, self.dirty, self.test_hash) or None

    def axis_value(self, axis: str) -> Scalar | None:
        """Return the value on an axis of the variant or of :data:`CONTEXT_AXES`; None where it has none."""
        if axis == SELECTION_AXIS:
            return self.side or None
        values = dict(self.variant.values)
        if axis in values:
            return values[axis]
        attribute = CONTEXT_AXES.get(axis)
        return getattr(self, attribute) if attribute else None

    def reason_unusable(self, metric: str) -> str:
        """Return the reason for excluding this execution from ``metric``; '' where it is usable."""
        if self.failure_class:
            return f"failed: {self.failure_class}"
        if not self.plausible:
            return "implausible"
        value = self.metrics.get(metric, math.nan)
        if math.isnan(value):
            return f"no {metric}"
        if value <= 0 and metric not in HEADLINE_METRICS:
            return f"{metric} is not above 0"
        low, high = POSSIBLE_RANGE_S if metric in HEADLINE_METRICS else POSSIBLE_RANGE
        return "" if low <= value <= high else f"impossible {metric}"


def _select_text(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    return {name: row.get(name) or "" for name in names}


def _select_recorded(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, float]:
    """Select the recorded values of some columns, by the names that are mapped to them."""
    values = {name: row.get(column) for name, column in columns.items()}
    return {name: value for name, value in values.items() if value is not None}


def identify_unit(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return job and attempt; of jobs that load together, which measure the storage once, their start."""
    start_us = row.get("start_planned_us")
    return (f"start {start_us}", 1) if start_us else (row["job_id"], row["attempt"])


def comparison_key(sample: Sample, axis: str) -> str:
    """Compute the key shared by samples that may be paired: the series without ``axis``."""
    if axis == "storage_site":  # at one site of jobs
        return f"{_fingerprint(sample, axis, 'door')}/{sample.door_protocol}"
    return _fingerprint_by_protocol(sample, axis) if axis == "site" else _fingerprint(sample, axis)


def release_key(sample: Sample, axis: str) -> str:
    """Compute the key shared by samples that are pooled over sites."""
    if axis == "door":
        return _fingerprint(sample, "site", "door")
    return _fingerprint_by_protocol(sample, axis)


def _fingerprint_by_protocol(sample: Sample, axis: str) -> str:
    """Use the door's protocol: door names differ from site to site."""
    return f"{_fingerprint(sample, axis, 'site', 'door')}/{sample.door_protocol}"


def _fingerprint(sample: Sample, *without: str) -> str:
    key = compute_comparison_key(
        {
            "test_hash": sample.test_hash,
            "variant": sample.variant.canonical_json,
            "dataset_hash": sample.dataset_hash,
            "content_hash": sample.content_hash,
            "site": sample.site,
            "storage_site": sample.storage_site,
            "door": sample.door,
            "instrument_version": sample.instrument_version,
            "test_path": sample.test_path,
            "setup": sample.setup,
        },
        without=without,
    )
    return f"{key}/{CLING}" if sample.is_interpreted else key


def parse_variant(text: str) -> Variant:
    """Parse a variant from canonical JSON."""
    return Variant(tuple(json.loads(text).items()))


def find_varying_axes(variants: Iterable[Variant]) -> dict[str, list[Scalar]]:
    """Find the axes with several values among ``variants``, and those values in natural order.

    An axis that some variants lack, such as a distance that one request names, varies as well.
    """
    values: dict[str, set[Scalar]] = {}
    distinct = dict.fromkeys(variants)
    for variant in distinct:
        for axis, value in variant.values:
            values.setdefault(axis, set()).add(value)
    names = [{axis for axis, _ in variant.values} for variant in distinct]
    return {
        axis: sorted(axis_values, key=natural_sort_key)
        for axis, axis_values in values.items()
        if len(axis_values) > 1 or not all(axis in present for present in names)
    }


def select_known_hosts(hosts: Iterable[str | None]) -> set[str]:
    """Select the known hosts; executions without a host name count for none."""
    return {host for host in hosts if host}


def count_hosts(rows: Iterable[Mapping[str, Any]]) -> int:
    """Count the known hosts of rows with ``host``; pods of one ``machine`` are one."""
    return len(select_known_hosts(row.get("machine") or row["host"] for row in rows))


def unify_hosts(samples: Iterable[Sample]) -> list[Sample]:
    """Unify the host names of executions on one machine of a site, such as those of its pods.

    Jobs on one machine are not independent, even under different host names.
    """
    samples = list(samples)
    hosts: dict[tuple[str, str], set[str]] = {}
    for sample in samples:
        if sample.machine:
            hosts.setdefault((sample.site, sample.machine), set()).add(sample.host)
    names = {
        machine: min(hosts_of_machine)
        for machine, hosts_of_machine in hosts.items()
        if len(hosts_of_machine) > 1
    }
    return [
        replace(sample, host=names[sample.site, sample.machine])
        if (sample.site, sample.machine) in names
        else sample
        for sample in samples
    ]


def assign_compilers(samples: Iterable[Sample]) -> list[Sample]:
    """Let failed executions, which may name no compiler, follow the others of their series."""
    samples = list(samples)
    keys = [comparison_key(replace(sample, is_interpreted=False), "") for sample in samples]
    compilers: dict[str, set[bool]] = {}
    for sample, key in zip(samples, keys, strict=True):
        if sample.build.get("loop_compiler"):
            compilers.setdefault(key, set()).add(sample.is_interpreted)
    return [
        replace(sample, is_interpreted=True)
        if sample.failure_class and compilers.get(key) == {True}
        else sample
        for sample, key in zip(samples, keys, strict=True)
    ]


#: Numbers in text, in this order: the value of an axis that names no version, a share between 0 and
#: 1 or in per cent, and runs of digits, such as the parts of a version.  The digits are limited,
#: since Python refuses to convert longer ones.
_NUMBERS = re.compile(
    r"(?<==)(?<!root=)(?<!release=)(?<!version=)-?\d{1,300}(?:\.\d{1,300})?(?:e[-+]?\d{1,3}\b)?(?![\d.])"
    r"|(?<![\w.])-?0\.\d{1,300}(?![\d.])"
    r"|(?<![\w.])-?\d{1,300}\.\d{1,300}(?=\s?%)"
    r"|\d{1,300}"
)


def natural_sort_key(value: Scalar) -> tuple[Any, ...]:
    """Sort key that puts 6.9 before 6.10, 0.04 before 0.2, and numbers before text.

    Versions and decimals look alike in text: ``6.9`` alone is a version, ``0.2``, ``9.5 %`` and
    ``x=9.5`` are numbers.
    """
    if not isinstance(value, str):
        return 0, value
    parts: list[tuple[int, float, str]] = []
    end = 0
    for number in _NUMBERS.finditer(value):
        if number.start() > end:
            parts.append((1, 0, value[end : number.start()]))
        text = number[0]
        parts.append((0, int(text) if text.isdecimal() else float(text), ""))
        end = number.end()
    if end < len(value):
        parts.append((1, 0, value[end:]))
    return 1, tuple(parts)


def find_axis_value(samples: Iterable[Sample], axis: str, text: str) -> Scalar:
    """Find the value of ``axis`` that a user wrote as ``text``.

    Numbers compare as numbers (``30`` is 30.0), text as text (``6.4`` is not ``6.40``).

    Raises:
        ConfigError: no sample has such an axis.
        NothingToDoError: no sample has this value.
    """
    present: set[Scalar] = set()
    axes: set[str] = set(CONTEXT_AXES)
    for sample in samples:
        axes.update(name for name, _ in sample.variant.values)
        value = sample.axis_value(axis)
        if value is not None:
            present.add(value)
    if axis not in axes:
        raise ConfigError(
            f"no measurement has an axis {axis!r}",
            where="--axis",
            hint=f"{suggest_word(axis, axes)}Axes present: {', '.join(sorted(axes))}.",
        )
    for value in present:
        if matches_value(text, value):
            return value
    values_text = ", ".join(str(value) for value in sorted(present, key=natural_sort_key))
    # Near numbers are no misspellings.
    near = suggest_word(text, set(map(str, present)).intersection(present))
    raise NothingToDoError(
        f"no measurement has {axis}={text}",
        where="compare",
        hint=f"{near}Values present: {values_text or 'none'}.",
    )


def matches_value(text: str, value: Scalar) -> bool:
    """Return whether a user wrote this value: numbers compare as numbers, text as text."""
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, str):
        return text == value
    try:
        return float(text) == value
    except ValueError:
        return False


def possible_values(text: str) -> Iterator[Scalar]:
    """Iterate over the values that a text may stand for (see :func:`matches_value`), text first."""
    yield text
    if text.lower() in ("true", "false"):
        yield text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return
    if number.is_integer():
        yield int(number)
    yield number
