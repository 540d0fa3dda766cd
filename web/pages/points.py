"""The points of a figure: what is asked for, found in the database, within stated limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from treehammer.analysis.samples import natural_order
from treehammer.errors import ConfigError
from treehammer.sql import campaigns, figure_values
from treehammer.sql.figure_queries import work
from treehammer.sql.figures import TIMES, Group, Moments, require_few
from treehammer.sql.queries import Snapshot
from treehammer.sql.rollups import GOOD, IMPLAUSIBLE, UNSUPPORTED
from treehammer.sql.schema import ROLLED
from treehammer.sql.selection import Scalar
from treehammer.sql.store import Store
from treehammer.web.pages.asked import DISTRIBUTION, INTERVAL, LATENCY, MEANS, Asked
from treehammer.web.pages.mixes import MIXED, Mix, mix
from treehammer.web.pages.variants import VARIANT, Variants, told_apart

#: The column of campaigns' identities.
CAMPAIGN = "campaign_id"
#: Measurements that a figure may read one by one, where no roll-up answers.
MOST_READ = 300_000
#: Groups that a figure may have.
MOST_GROUPS = 20_000
#: Shares of a distribution that are told: two whiskers, the box, the median.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

#: Columns of roll-ups that say nothing of what was done: good executions have no failure.
_NO_WORK = (*TIMES, "failure_class")

Key = tuple[Scalar, ...]


@dataclass(frozen=True)
class Point:
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
        reads: by latency, see :attr:`treehammer.sql.figures.Group.reads`.
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

    def latency_s(self, share: float) -> float | None:
        """Seconds below which a share of the reads took; None without reads."""
        return Group({}, {}, {}, self.reads).latency_s(share)


@dataclass(frozen=True)
class Points:
    """All groups of a figure.

    Attributes:
        points: in natural order.
        source: where they come from: ``roll-ups`` or ``measurements``.
        mix: what they take together.
        variants: of all groups, where groups have them.
        campaigns: of all groups, where groups have them: identity -> a name of its own, by names.
    """

    points: tuple[Point, ...]
    source: str
    mix: Mix = field(default_factory=Mix)
    variants: Variants = field(default_factory=Variants)
    campaigns: Mapping[str, str] = field(default_factory=dict)


def find(store: Store, asked: Asked) -> Points:
    """The points of a figure.

    Raises:
        ConfigError: a column cannot be used so, more than :data:`MOST_READ` measurements would
            have to be read, or there are more than :data:`MOST_GROUPS` groups.
    """
    figure = asked.figure
    single = asked.view == DISTRIBUTION or _is_interval(asked)
    with store.connection() as connection:
        snapshot = Snapshot(connection)
        if single or figure.source == "measurements":
            _require_few(figure_values.most(connection, figure))
        if figure.source == "roll-ups" and not _is_interval(asked):
            groups: Sequence[Group] = snapshot.figure(figure, MOST_GROUPS).groups
            named = tuple(name for name in _parts(figure.by) if name not in _NO_WORK)
            behind = work(connection, figure, named)
        else:
            # Measurements are read once: by all that is taken together, and by job for intervals.
            names = (*figure.by, *(["job_id"] if _is_interval(asked) else []))
            named = _parts(names)
            parts = snapshot.figure(replace(figure, by=named)).groups
            groups = _merged(parts, names)
            behind = [tuple(part.by.values()) for part in parts if _is_drawn(part, asked)]
        values: Iterable[tuple[Key, float]] = ()
        if asked.view == DISTRIBUTION:
            values = figure_values.values(connection, figure)
        points = _points(groups, values, asked)
    require_few(len(points), MOST_GROUPS)
    source = "measurements" if single else figure.source
    return Points(
        tuple(_sorted(points, asked.groups)),
        source,
        mix(asked.groups, named, behind),
        _variants(points, asked.groups),
        _campaigns(store, points, asked.groups),
    )


def _variants(points: Iterable[Point], groups: Sequence[str]) -> Variants:
    found = {point.key[VARIANT] for point in points} if VARIANT in groups else ()
    return told_apart(map(str, filter(None, found)), release_told="axis_root" in groups)


def _campaigns(store: Store, points: Iterable[Point], groups: Sequence[str]) -> Mapping[str, str]:
    found = {point.key[CAMPAIGN] for point in points} if CAMPAIGN in groups else ()
    named = campaigns.names_apart(store, sorted(map(str, filter(None, found))))
    return dict(sorted(named.items(), key=lambda one: natural_order(one[1])))


def _parts(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *MIXED)))


def _merged(parts: Iterable[Group], names: Sequence[str]) -> list[Group]:
    """Groups by fewer columns than they are given by."""
    together: dict[Key, list[Group]] = defaultdict(list)
    for part in parts:
        together[tuple(part.by[name] for name in names)].append(part)
    found = []
    for key, own in together.items():
        outcomes: Counter[str] = Counter()
        for part in own:
            outcomes.update(part.outcomes)
        found.append(
            Group(
                dict(zip(names, key, strict=True)),
                outcomes,
                {name: sum((p.metrics[name] for p in own), Moments()) for name in own[0].metrics},
                [sum(bins) for bins in zip(*(part.reads for part in own), strict=True)],
            )
        )
    return found


def _is_drawn(group: Group, asked: Asked) -> bool:
    """Whether anything of a group is drawn."""
    return any(group.reads) if asked.view == LATENCY else group.metrics[asked.metric].number > 0


def _is_interval(asked: Asked) -> bool:
    return asked.view == MEANS and asked.bars == INTERVAL


def _points(
    groups: Sequence[Group], values: Iterable[tuple[Key, float]], asked: Asked
) -> list[Point]:
    if asked.view == LATENCY:
        return [_read(group) for group in groups]
    if asked.view == DISTRIBUTION:
        return _distributed(groups, values, asked)
    if asked.bars == INTERVAL:
        return _over_jobs(groups, asked)
    return [_of_group(group, asked) for group in groups]


def _require_few(count: int) -> None:
    if count <= MOST_READ:
        return
    raise ConfigError(
        f"this figure would read up to {count:,} measurements one by one, and {MOST_READ:,} is the limit",
        hint="Choose fewer days, a campaign, a site or a release. Means of the metrics "
        f"{', '.join(ROLLED[:6])} and some more, by site, test, variant, release, dataset, door and "
        "day, are kept summed up and have no limit.",
    )


def _read(group: Group) -> Point:
    return Point(key=group.by, number=group.good, reads=group.reads, **_outcomes([group]))


def _of_group(group: Group, asked: Asked) -> Point:
    moments = group.metrics[asked.metric]
    return Point(
        key=group.by,
        number=moments.number,
        mean=moments.mean,
        rms=moments.rms,
        smallest=moments.low,
        largest=moments.high,
        **_outcomes([group]),
    )


def _outcomes(groups: Sequence[Group]) -> dict[str, Any]:
    counts = Counter(groups[0].outcomes)
    for group in groups[1:]:
        counts.update(group.outcomes)
    apart = {
        "good": counts[GOOD],
        "implausible": counts[IMPLAUSIBLE],
        "not_supported": sum(counts[outcome] for outcome in UNSUPPORTED.values()),
    }
    return {**apart, "failed": counts.total() - sum(apart.values())}


def _over_jobs(groups: Iterable[Group], asked: Asked) -> list[Point]:
    """The mean over jobs of each job's mean, with its t interval."""
    # scipy takes a second to load, which only who asks for intervals waits for.
    from treehammer.analysis.statistics import one_sample

    together: dict[Key, list[Group]] = defaultdict(list)
    for group in groups:
        together[tuple(group.by[name] for name in asked.groups)].append(group)
    points = []
    for key, of_key in together.items():
        moments = [group.metrics[asked.metric] for group in of_key]
        means = [one.mean for one in moments if one.mean is not None]
        estimate = one_sample(means)
        low, high = estimate.interval() if estimate else (None, None)
        points.append(
            Point(
                key=dict(zip(asked.groups, key, strict=True)),
                number=sum(one.number for one in moments),
                mean=sum(means) / len(means) if means else None,
                low=low,
                high=high,
                jobs=len(means),
                **_outcomes(of_key),
            )
        )
    return points


def _distributed(
    groups: Iterable[Group], values: Iterable[tuple[Key, float]], asked: Asked
) -> list[Point]:
    import numpy as np

    by_key: dict[Key, list[float]] = defaultdict(list)
    for key, value in values:
        by_key[key].append(value)
    points = []
    for group in groups:
        found = by_key.get(tuple(group.by[name] for name in asked.groups), [])
        numbers: dict[str, Any] = {}
        if found:
            numbers = {
                "mean": float(np.mean(found)),
                "smallest": min(found),
                "largest": max(found),
                "quantiles": tuple(map(float, np.quantile(found, QUANTILES))),
            }
        points.append(Point(group.by, len(found), **numbers, **_outcomes([group])))
    return points


def _sorted(points: list[Point], names: Sequence[str]) -> list[Point]:
    """In natural order of their groups."""
    # Values are told apart by type, too: 1 is true, and yet another value.
    values = {name: {_typed(point.key[name]) for point in points} for name in names}
    ranks = {
        name: {one: rank for rank, one in enumerate(sorted(found, key=_order))}
        for name, found in values.items()
    }
    return sorted(points, key=lambda one: [ranks[name][_typed(one.key[name])] for name in names])


def _typed(value: Scalar) -> tuple[type, Scalar]:
    return type(value), value


def _order(typed: tuple[type, Scalar]) -> tuple[Any, ...]:
    _, value = typed
    return (2,) if value is None else natural_order(value)
