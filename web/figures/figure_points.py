"""The points of a figure: what is asked for, found in the database, within stated limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.collectors.record.outcome import sum_outcomes
from treehammer.errors import ConfigError
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import campaign_queries, figure_values
from treehammer.sql.read.figure_query import TIME_UNITS, FigureGroup, Moments, require_max_groups
from treehammer.sql.read.figure_sql import fetch_work
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.measurement_selection import Scalar
from treehammer.sql.write.store import Store
from treehammer.web.display.variant_labels import VARIANT_COLUMN, VariantLabels, label_variants
from treehammer.web.figures.aggregation_notes import (
    AGGREGATED_COLUMNS,
    Aggregation,
    count_aggregated,
)
from treehammer.web.figures.explore_query import (
    DISTRIBUTION,
    INTERVAL,
    LATENCY,
    MEANS,
    ExploreQuery,
)

#: The column of campaigns' identities.
CAMPAIGN_COLUMN = "campaign_id"
#: Measurements that a figure may read one by one, where no roll-up answers.
MAX_READ = 300_000
#: Groups that a figure may have.
MAX_GROUPS = 20_000
#: Shares of a distribution that are told: two whiskers, the box, the median.
QUANTILE_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Columns of roll-ups that say nothing of what was done: good executions have no failure.
_OUTCOME_COLUMNS = (*TIME_UNITS, "failure_class")

Key = tuple[Scalar, ...]


@dataclass(frozen=True)
class FigurePoint:
    """One group.

    Attributes:
        key: its values, by the columns of :attr:`Asked.groups`.
        number: good executions that have the metric.
        mean: of these; over jobs where the bar is an interval.
        rms: of these executions, around their mean.
        low: lower end of the interval of the mean; None where nothing can be said.
        high: its upper end.
        jobs: how many, where the bar is an interval.
        smallest: value; None where roll-ups answered, which do not know it.
        largest: value.
        quantiles: at :data:`QUANTILES`, of a distribution.
        reads: by latency, see :attr:`treehammer.sql.read.figure_query.FigureGroup.reads`.
        good: executions that came back whole and can be true.
        failed: those that did not, without those that are not supported.
        implausible: those that cannot be true.
        not_supported: those of what a release or set-up cannot do at all.
    """

    key: Mapping[str, Scalar]
    number: int
    mean: float | None = None
    rms: float | None = None
    low: float | None = None
    high: float | None = None
    jobs: int | None = None
    smallest: float | None = None
    largest: float | None = None
    quantiles: tuple[float, ...] = ()
    reads: Sequence[int] = ()
    good: int = 0
    failed: int = 0
    implausible: int = 0
    not_supported: int = 0

    def latency_quantile_s(self, share: float) -> float | None:
        """Seconds below which a share of the reads took; None without reads."""
        return FigureGroup({}, {}, {}, self.reads).latency_quantile_s(share)


@dataclass(frozen=True)
class FigurePoints:
    """All groups of a figure.

    Attributes:
        points: in natural order.
        source: where they come from: ``roll-ups`` or ``measurements``.
        mix: what they take together.
        variants: of all groups, where groups have them.
        campaigns: of all groups, where groups have them: identity -> a name of its own, by names.
    """

    points: tuple[FigurePoint, ...]
    source: str
    aggregation: Aggregation = field(default_factory=Aggregation)
    variants: VariantLabels = field(default_factory=VariantLabels)
    campaigns: Mapping[str, str] = field(default_factory=dict)


def load_points(store: Store, asked: ExploreQuery) -> FigurePoints:
    """The points of a figure.

    Raises:
        ConfigError: a column cannot be used so, more than :data:`MOST_READ` measurements would
            have to be read, or there are more than :data:`MOST_GROUPS` groups.
    """
    figure = asked.figure
    single = asked.view == DISTRIBUTION or _is_interval(asked)
    with store.connection() as connection:
        snapshot = DatabaseSnapshot(connection)
        if single or figure.source == "measurements":
            _require_few_groups(figure_values.estimate_max_measurements(connection, figure))
        if figure.source == "roll-ups" and not _is_interval(asked):
            groups: Sequence[FigureGroup] = snapshot.fetch_figure(figure, MAX_GROUPS).groups
            named = tuple(
                name for name in _stored_columns(figure.by) if name not in _OUTCOME_COLUMNS
            )
            behind = fetch_work(connection, figure, named)
        else:
            # Measurements are read once: by all that is taken together, and by job for intervals.
            names = (*figure.by, *(["job_id"] if _is_interval(asked) else []))
            named = _stored_columns(names)
            parts = snapshot.fetch_figure(replace(figure, by=named)).groups
            groups = _merge_groups(parts, names)
            behind = [tuple(part.by.values()) for part in parts if _is_drawn(part, asked)]
        values: Iterable[tuple[Key, float]] = ()
        if asked.view == DISTRIBUTION:
            values = figure_values.fetch_values(connection, figure)
        points = _build_points(groups, values, asked)
    require_max_groups(len(points), MAX_GROUPS)
    source = "measurements" if single else figure.source
    return FigurePoints(
        tuple(_sort_points(points, asked.group_columns)),
        source,
        count_aggregated(asked.group_columns, named, behind),
        _variant_labels(points, asked.group_columns),
        _campaign_names(store, points, asked.group_columns),
    )


def _variant_labels(points: Iterable[FigurePoint], groups: Sequence[str]) -> VariantLabels:
    found = {point.key[VARIANT_COLUMN] for point in points} if VARIANT_COLUMN in groups else ()
    return label_variants(map(str, filter(None, found)), release_told="axis_root" in groups)


def _campaign_names(
    store: Store, points: Iterable[FigurePoint], groups: Sequence[str]
) -> Mapping[str, str]:
    found = {point.key[CAMPAIGN_COLUMN] for point in points} if CAMPAIGN_COLUMN in groups else ()
    named = campaign_queries.fetch_distinct_names(store, sorted(map(str, filter(None, found))))
    return dict(sorted(named.items(), key=lambda one: natural_sort_key(one[1])))


def _stored_columns(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *AGGREGATED_COLUMNS)))


def _merge_groups(parts: Iterable[FigureGroup], names: Sequence[str]) -> list[FigureGroup]:
    """Groups by fewer columns than they are given by."""
    together: dict[Key, list[FigureGroup]] = defaultdict(list)
    for part in parts:
        together[tuple(part.by[name] for name in names)].append(part)
    found = []
    for key, own in together.items():
        outcomes: Counter[str] = Counter()
        for part in own:
            outcomes.update(part.outcomes)
        found.append(
            FigureGroup(
                dict(zip(names, key, strict=True)),
                outcomes,
                {name: sum((p.metrics[name] for p in own), Moments()) for name in own[0].metrics},
                [sum(bins) for bins in zip(*(part.reads for part in own), strict=True)],
            )
        )
    return found


def _is_drawn(group: FigureGroup, asked: ExploreQuery) -> bool:
    """Whether anything of a group is drawn."""
    return (
        any(group.reads) if asked.view == LATENCY else group.metrics[asked.metric].value_count > 0
    )


def _is_interval(asked: ExploreQuery) -> bool:
    return asked.view == MEANS and asked.bars == INTERVAL


def _build_points(
    groups: Sequence[FigureGroup], values: Iterable[tuple[Key, float]], asked: ExploreQuery
) -> list[FigurePoint]:
    if asked.view == LATENCY:
        return [_group_reads(group) for group in groups]
    if asked.view == DISTRIBUTION:
        return _distribution_points(groups, values, asked)
    if asked.bars == INTERVAL:
        return _mean_over_jobs(groups, asked)
    return [_point_of_group(group, asked) for group in groups]


def _require_few_groups(count: int) -> None:
    if count <= MAX_READ:
        return
    raise ConfigError(
        f"this figure would read up to {count:,} measurements one by one, and {MAX_READ:,} is the limit",
        hint="Choose fewer days, a campaign, a site or a release. Means of the metrics "
        f"{', '.join(ROLLUP_METRICS[:6])} and some more, by site, test, variant, release, dataset, door and "
        "day, are kept summed up and have no limit.",
    )


def _group_reads(group: FigureGroup) -> FigurePoint:
    return FigurePoint(
        key=group.by, number=group.good, reads=group.reads, **_count_outcomes([group])
    )


def _point_of_group(group: FigureGroup, asked: ExploreQuery) -> FigurePoint:
    moments = group.metrics[asked.metric]
    return FigurePoint(
        key=group.by,
        number=moments.value_count,
        mean=moments.mean,
        rms=moments.rms,
        smallest=moments.minimum,
        largest=moments.maximum,
        **_count_outcomes([group]),
    )


def _count_outcomes(groups: Sequence[FigureGroup]) -> dict[str, Any]:
    counts = Counter(groups[0].outcomes)
    for group in groups[1:]:
        counts.update(group.outcomes)
    return {outcome.key: count for outcome, count in sum_outcomes(counts).items()}


def _mean_over_jobs(groups: Iterable[FigureGroup], asked: ExploreQuery) -> list[FigurePoint]:
    """The mean over jobs of each job's mean, with its t interval."""
    # scipy takes a second to load, which only who asks for intervals waits for.
    from treehammer.analysis.statistics.estimates import estimate_paired

    together: dict[Key, list[FigureGroup]] = defaultdict(list)
    for group in groups:
        together[tuple(group.by[name] for name in asked.group_columns)].append(group)
    points = []
    for key, of_key in together.items():
        moments = [group.metrics[asked.metric] for group in of_key]
        means = [one.mean for one in moments if one.mean is not None]
        estimate = estimate_paired(means)
        low, high = estimate.interval() if estimate else (None, None)
        points.append(
            FigurePoint(
                key=dict(zip(asked.group_columns, key, strict=True)),
                number=sum(one.value_count for one in moments),
                mean=sum(means) / len(means) if means else None,
                low=low,
                high=high,
                jobs=len(means),
                **_count_outcomes(of_key),
            )
        )
    return points


def _distribution_points(
    groups: Iterable[FigureGroup], values: Iterable[tuple[Key, float]], asked: ExploreQuery
) -> list[FigurePoint]:
    import numpy as np

    by_key: dict[Key, list[float]] = defaultdict(list)
    for key, value in values:
        by_key[key].append(value)
    points = []
    for group in groups:
        found = by_key.get(tuple(group.by[name] for name in asked.group_columns), [])
        numbers: dict[str, Any] = {}
        if found:
            numbers = {
                "mean": float(np.mean(found)),
                "smallest": min(found),
                "largest": max(found),
                "quantiles": tuple(map(float, np.quantile(found, QUANTILE_SHARES))),
            }
        points.append(FigurePoint(group.by, len(found), **numbers, **_count_outcomes([group])))
    return points


def _sort_points(points: list[FigurePoint], names: Sequence[str]) -> list[FigurePoint]:
    """In natural order of their groups."""
    # Values are told apart by type, too: 1 is true, and yet another value.
    values = {name: {_parse_number(point.key[name]) for point in points} for name in names}
    ranks = {
        name: {one: rank for rank, one in enumerate(sorted(found, key=_sort_order))}
        for name, found in values.items()
    }
    return sorted(
        points, key=lambda one: [ranks[name][_parse_number(one.key[name])] for name in names]
    )


def _parse_number(value: Scalar) -> tuple[type, Scalar]:
    return type(value), value


def _sort_order(typed: tuple[type, Scalar]) -> tuple[Any, ...]:
    _, value = typed
    return (2,) if value is None else natural_sort_key(value)
