"""Points of a figure, loaded from the database within limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.outcome import sum_outcomes
from treehammer.errors import ConfigError
from treehammer.explore.explore_query import ExploreQuery, View
from treehammer.explore.work_mix import (
    AGGREGATED_COLUMNS,
    Aggregation,
    compare_with_same_work,
    count_aggregated,
)
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import campaign_queries, figure_sql
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import (
    MAX_READ,
    TIME_UNITS,
    FigureGroup,
    FigureQuery,
    Moments,
    Scalar,
    Selection,
    require_max_groups,
)
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS
from treehammer.sql.write.store import Store
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, label_variants

#: Name of the column of campaign ids.
CAMPAIGN_COLUMN = "campaign_id"
#: Maximum number of groups of a figure.
MAX_GROUPS = 20_000

#: Roll-up columns that do not describe the work; good executions have no failure class.
_OUTCOME_COLUMNS = (*TIME_UNITS, "failure_class")
#: Columns whose conditions select work; references of the same work ignore all others.
_WORK_CONDITIONS = (*WORKLOAD_COLUMNS, "dataset", "variant_label")

Key = tuple[Scalar, ...]


class FigurePoint(NamedTuple):
    """One group of a figure.

    Attributes:
        number: good executions that have the metric.
        mean: mean of these; difference from the same work, as a share, if the figure is relative.
        rms: RMS of these executions around their mean.
        smallest: smallest value, None for roll-ups, which do not store it.
        not_supported: executions of features that the release or setup lacks.
    """

    key: Mapping[str, Scalar]
    number: int
    mean: float | None = None
    rms: float | None = None
    smallest: float | None = None
    largest: float | None = None
    good: int = 0
    failed: int = 0
    implausible: int = 0
    not_supported: int = 0


@dataclass(frozen=True)
class FigurePoints:
    """All groups of a figure.

    Attributes:
        points: in natural order of their groups.
        source: ``roll-ups`` or ``measurements``.
        variants: labels of variants, if groups have them.
        campaigns: campaign id -> unique name, if groups have them.
        connected: whether common work connects all places of each line of a relative figure.
    """

    points: tuple[FigurePoint, ...]
    source: str
    aggregation: Aggregation = field(default_factory=Aggregation)
    variants: VariantLabels = field(default_factory=VariantLabels)
    campaigns: Mapping[str, str] = field(default_factory=dict)
    connected: bool = True


def load_points(store: Store, query: ExploreQuery) -> FigurePoints:
    """Load the points of a figure; one that is too large is refused."""
    if query.view == View.RELATIVE:
        return _load_relative(store, query)
    figure = query.figure
    with store.connection() as connection:
        if figure.source == "measurements":
            _require_few_measurements(connection, figure)
        groups, stored_columns, work = _load_groups(connection, query)
    return _collect_points(
        store,
        query,
        [
            FigurePoint(
                group.by,
                moments.value_count,
                moments.mean,
                moments.rms,
                moments.minimum,
                moments.maximum,
                **_count_outcomes([group]),
            )
            for group in groups
            for moments in [group.metrics[query.metric]]
        ],
        source=figure.source,
        aggregation=count_aggregated(query.group_columns, stored_columns, work),
    )


def _load_groups(
    connection: Connection, query: ExploreQuery
) -> tuple[Sequence[FigureGroup], tuple[str, ...], Sequence[Sequence[Scalar]]]:
    """Load the groups of a figure, and the columns and values of the work in them."""
    figure, snapshot = query.figure, DatabaseSnapshot(connection)
    if figure.source == "roll-ups":
        stored_columns = _stored_columns(figure.by, without=_OUTCOME_COLUMNS)
        groups = snapshot.load_figure(figure, MAX_GROUPS).groups
        return groups, stored_columns, figure_sql.load_work(connection, figure, stored_columns)
    # Measurements are read once, grouped by all aggregated columns.
    stored_columns = _stored_columns(figure.by)
    parts = snapshot.load_figure(replace(figure, by=stored_columns)).groups
    work = [tuple(part.by.values()) for part in parts if part.metrics[query.metric].value_count]
    return _merge_groups(parts, figure.by), stored_columns, work


def _collect_points(
    store: Store, query: ExploreQuery, points: list[FigurePoint], source: str, **fields: Any
) -> FigurePoints:
    """Sort and label the points of a figure."""
    require_max_groups(len(points), MAX_GROUPS)
    groups = query.group_columns
    texts: dict[str, Collection[str]] = {
        name: {str(value) for point in points if (value := point.key.get(name))}
        for name in (VARIANT_COLUMN, CAMPAIGN_COLUMN)
    }
    variants = label_variants(texts[VARIANT_COLUMN], hide_release="axis_root" in groups)
    names = campaign_queries.load_distinct_names(store, sorted(texts[CAMPAIGN_COLUMN]))
    return FigurePoints(
        tuple(_sort_points(points, groups, variants)),
        source,
        variants=variants,
        campaigns=dict(sorted(names.items(), key=lambda item: natural_sort_key(item[1]))),
        **fields,
    )


def _load_relative(store: Store, query: ExploreQuery) -> FigurePoints:
    """Load the differences of groups from the median of the same work at all sites."""
    conditions = query.figure.selection.conditions
    work_conditions = tuple(
        condition for condition in conditions if condition.column in _WORK_CONDITIONS
    )
    figures = [
        replace(query.figure, by=tuple(dict.fromkeys((*query.group_columns, *WORKLOAD_COLUMNS)))),
        replace(
            query.figure,
            by=("site", *WORKLOAD_COLUMNS),
            selection=Selection(query.campaigns, work_conditions),
        ),
    ]
    with store.connection() as connection:
        for figure in figures:
            if figure.source == "measurements":
                _require_few_measurements(connection, figure)
        compared, all_sites = [
            DatabaseSnapshot(connection).load_figure(figure, MAX_READ).groups for figure in figures
        ]
    relative_means, connected = compare_with_same_work(
        compared, all_sites, query.metric, query.group_columns, query.by
    )
    points = []
    for key, groups in _group_by(compared, query.group_columns).items():
        group_values = dict(zip(query.group_columns, key, strict=True))
        relative = relative_means.get(key, (0,))
        points.append(FigurePoint(group_values, *relative, **_count_outcomes(groups)))
    return _collect_points(store, query, points, source=figures[0].source, connected=connected)


def _stored_columns(names: Sequence[str], without: Collection[str] = ()) -> tuple[str, ...]:
    columns = dict.fromkeys((*names, *AGGREGATED_COLUMNS))
    return tuple(name for name in columns if name not in without)


def _group_by(groups: Iterable[FigureGroup], names: Sequence[str]) -> dict[Key, list[FigureGroup]]:
    members: dict[Key, list[FigureGroup]] = defaultdict(list)
    for group in groups:
        members[tuple(group.by[name] for name in names)].append(group)
    return members


def _merge_groups(parts: Iterable[FigureGroup], names: Sequence[str]) -> list[FigureGroup]:
    merged = []
    for key, members in _group_by(parts, names).items():
        outcomes: Counter[str] = Counter()
        for part in members:
            outcomes.update(part.outcomes)
        merged.append(
            FigureGroup(
                dict(zip(names, key, strict=True)),
                outcomes,
                {
                    name: sum((p.metrics[name] for p in members), Moments())
                    for name in members[0].metrics
                },
            )
        )
    return merged


def _require_few_measurements(connection: Connection, figure: FigureQuery) -> None:
    count = figure_sql.estimate_max_measurements(connection, figure)
    if count <= MAX_READ:
        return
    raise ConfigError(
        f"this figure would read up to {count:,} measurements; the limit is {MAX_READ:,}",
        hint="Choose fewer days, a campaign, a site or a release. Means of the metrics "
        f"{', '.join(ROLLUP_METRICS[:6])} and some others by site, test, variant, release, dataset, "
        "door and day are stored aggregated and have no limit.",
    )


def _count_outcomes(groups: Sequence[FigureGroup]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for group in groups:
        counts.update(group.outcomes)
    return {outcome.key: count for outcome, count in sum_outcomes(counts).items()}


def _sort_points(
    points: list[FigurePoint], names: Sequence[str], variants: VariantLabels
) -> list[FigurePoint]:
    """Sort points in natural order of their groups; variants in that of their labels."""
    places = {variant: place for place, variant in enumerate(variants.names)}

    # Values are distinguished by type as well: 1 equals true.
    @lru_cache(maxsize=None, typed=True)
    def rank(name: str, value: Scalar) -> tuple[Any, ...]:
        is_labeled = name == VARIANT_COLUMN and str(value) in places
        return places[str(value)] if is_labeled else len(places), rank_value(value)

    return sorted(points, key=lambda point: [rank(name, point.key[name]) for name in names])


def rank_value(value: Scalar) -> tuple[Any, ...]:
    """Rank values in natural order, unknown ones last."""
    return (2,) if value is None else natural_sort_key(value)
