"""Results of a probe: effects of its paired jobs, or values of an exact counter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treehammer.analysis.comparison.comparability import collect_checksums
from treehammer.analysis.comparison.effect_measurement import measure_effect
from treehammer.analysis.comparison.series_sides import SeriesSides, split_sides
from treehammer.analysis.samples.headline_rows import load_headline_rows
from treehammer.analysis.samples.sample import SAMPLE_COLUMNS, Sample
from treehammer.collectors.record.exact_counters import COUNTER_NAMES
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, suggest_word
from treehammer.hctests.matrix.definition import TestDefinition
from treehammer.hctests.matrix.headline import HeadlineMetric, find_headline_metric
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store

AXIS = "root"


@dataclass(frozen=True)
class BuildProbeResult:
    """Result of a probe.

    Attributes:
        effects: ln(build/GOOD) of each paired job.
        counter: exact counter of GOOD and of the build.
        failure: why the build could not be measured; ''.
        was_run: whether any execution of the build returned a result.
        good_failed: whether it is GOOD that could not be measured.
    """

    effects: tuple[float, ...] = ()
    counter: tuple[float, float] | None = None
    failure: str = ""
    was_run: bool = True
    good_failed: bool = False


def find_metric(name: str, definition: TestDefinition) -> HeadlineMetric:
    """Find a metric of a test by its name: the test's own, of the catalogue, or of operations.

    Raises:
        ConfigError: there is none, or it is not a number.
    """
    if name in definition.metrics:
        declared = definition.metrics[name]
        return HeadlineMetric(name, declared.unit, declared.better or "lower")
    catalogued = METRICS_BY_NAME.get(name)
    if catalogued is not None and catalogued.type in ("int", "float"):
        return HeadlineMetric(name, catalogued.unit, catalogued.better or "lower")
    try:
        return find_headline_metric(name, {}, is_load=definition.load is not None)
    except (KeyError, ValueError) as error:
        names = [*definition.metrics, *METRICS_BY_NAME]
        raise ConfigError(
            "no metric of this name has values",
            where=f"--metric {name}",
            hint=f"{suggest_word(name, names)}Known: {', '.join(definition.metrics)} of the test, "
            "and those of the reference.",
        ) from error


def is_exact_counter(name: str, definition: TestDefinition) -> bool:
    """Return whether one job decides: the test declares the metric exact, or the catalogue does."""
    declared = definition.metrics.get(name)
    return declared.exact if declared else name in COUNTER_NAMES


def read_probe(
    store: Store, campaign_id: str, metric: HeadlineMetric, good: str, build: str, *, exact: bool
) -> BuildProbeResult:
    """Read the result of a probe's campaign from the store.

    Raises:
        ConfigError: the campaign has several series, or an exact counter varies.
    """
    samples = _load_samples(store, campaign_id, metric)
    series = split_sides(samples, AXIS, good, build)
    if len(series) > 1:
        labels = ", ".join(f"{sides.label} at {sides.site}" for sides in series)
        raise ConfigError(
            f"the test measures {len(series)} series of each build: {labels}",
            where="bisect",
            hint="Choose one value of each axis with -P, and one site.",
        )
    if not series or not series[0].b:
        return BuildProbeResult(failure="none of its executions returned a result", was_run=False)
    if exact:
        return _read_counter(series[0], metric)
    effect = measure_effect(series[0], metric, AXIS, collect_checksums(samples))
    if effect.pairs:
        return BuildProbeResult(effects=tuple(pair.d for pair in effect.pairs))
    return BuildProbeResult(failure=effect.why, good_failed=not _select_usable(series[0].a, metric))


def _load_samples(store: Store, campaign_id: str, metric: HeadlineMetric) -> list[Sample]:
    selection = Selection((campaign_id,))
    columns = [*SAMPLE_COLUMNS, *([metric.name] if metric.name in METRICS_BY_NAME else [])]
    rows = load_headline_rows(store, selection, columns)
    if not metric.figure and metric.name not in METRICS_BY_NAME:
        by_id = {row["measurement_id"]: row for row in rows}
        with store.snapshot() as snapshot:
            for extra in snapshot.extras(selection):
                if extra.name == metric.name:
                    by_id[extra.measurement_id][metric.name] = extra.value
    return [Sample.from_row({**row, "headline": (metric,)}) for row in rows]


def _read_counter(series: SeriesSides, metric: HeadlineMetric) -> BuildProbeResult:
    sides = [
        {s.metrics[metric.name] for s in side if not s.failure_class and metric.name in s.metrics}
        for side in (series.a, series.b)
    ]
    if any(len(values) > 1 for values in sides):
        raise ConfigError(
            "the metric differs between executions of one build: it is not exact here",
            where=f"--metric {metric.name}",
            hint="Search it as a noisy one, with --noisy.",
        )
    if not all(sides):
        failures = {s.failure_class or f"no {metric.name}" for s in (*series.a, *series.b)}
        return BuildProbeResult(failure=", ".join(sorted(failures)), good_failed=not sides[0])
    (good,), (build,) = sides
    return BuildProbeResult(counter=(good, build))


def _select_usable(side: Sequence[Sample], metric: HeadlineMetric) -> list[Sample]:
    return [sample for sample in side if not sample.reason_unusable(metric.name)]
