"""Levels of a site's door by day, fitted to jobs on different nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from treehammer.analysis.changes.change_terms import NodeIdentity
from treehammer.analysis.changes.daily_series import Context, Numbers, Values
from treehammer.analysis.changes.step_detection import MAD, find_breaks

#: Aspects of the context that identify a node.
NODE_TYPE, MACHINE = "node type", "machine"
#: Days on either side whose median is the level that a job is compared with.
LEVEL_DAYS = 21
#: Penalty, in variances of a day, of a step that this median does not look across.
LEVEL_PENALTY = 30.0
#: Standard deviations from the level up to which a job counts: a neighbor on the node may slow it
#: by a third, and nothing speeds it up as much.
CLIP = 2.5
#: Rounds of the fit; later ones change nothing that matters.
ROUNDS = 8


class LevelDay(NamedTuple):
    """Mean of the control's jobs of a day for one work on one host, in ln."""

    work: str
    host: str
    day: int
    value: float
    context: Context


def identify_nodes(items: Sequence[LevelDay]) -> list[tuple[NodeIdentity, str]]:
    """Identify the node of each value by its first property that was seen on another day, too.

    Names of pods, pilots and containers are new for each job, as are those of a farm that is larger
    than its tests are frequent. Such a name does not identify a node on another day.
    """
    days: dict[tuple[NodeIdentity, str], set[int]] = defaultdict(set)
    properties = [tuple(_list_properties(item)) for item in items]
    for item, candidates in zip(items, properties, strict=True):
        for candidate in candidates:
            days[candidate].add(item.day)
    site = (NodeIdentity.SITE, "")
    return [
        next((candidate for candidate in candidates if len(days[candidate]) > 1), site)
        for candidates in properties
    ]


def _list_properties(item: LevelDay) -> Iterator[tuple[NodeIdentity, str]]:
    model = item.context.get(NODE_TYPE, "")
    if item.host:
        yield NodeIdentity.HOST, item.host
    if machine := item.context.get(MACHINE):
        # Machines made from one image may share an identity, but hardly their CPU model as well.
        yield NodeIdentity.MACHINE, f"{machine} {model}"
    if model:
        yield NodeIdentity.CPU_MODEL, model


def fit_levels(items: Sequence[LevelDay]) -> tuple[Mapping[int, float], NodeIdentity]:
    """Fit value = work + node + level of the day.

    A node is compared with the median of all jobs within :data:`LEVEL_DAYS`. Least squares over
    nodes and days would leave open which of both was slow where the jobs of a day share a node, or a
    node has the jobs of one day only, and lose a part of each step. A node's effect is shrunk as far
    as nodes differ no more than the jobs of one.

    Returns:
        the levels by day ordinal, and the property that identified most nodes.
    """
    identities = identify_nodes(items)
    levels = _fit(
        _number(identities),
        _number([item.work for item in items]),
        np.array([item.day for item in items]),
        np.array([item.value for item in items]),
    )
    ((usual, _),) = Counter(identity for identity, _ in identities).most_common(1)
    return levels, usual


def _number(keys: Sequence[Hashable]) -> Numbers:
    """Number equal keys equally, from 0."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _fit(nodes: Numbers, works: Numbers, days: Numbers, values: Values) -> dict[int, float]:
    measured, columns = np.unique(days, return_inverse=True)
    work_effects, node_effects = _find_medians(works, values), np.zeros(int(nodes.max()) + 1)
    breaks: Sequence[int] = ()
    for _ in range(ROUNDS):
        residuals = values - work_effects[works] - node_effects[nodes]
        levels = _find_local_medians(measured, columns, residuals, breaks)[columns]
        limit = CLIP * float(np.median(np.abs(residuals - levels))) / MAD
        clipped = np.clip(residuals - levels, -limit, limit)
        means = np.bincount(columns, weights=levels + clipped) / np.bincount(columns)
        node_effects = _shrink_means(nodes, clipped + node_effects[nodes])
        work_effects += _find_medians(
            works, values - work_effects[works] - node_effects[nodes] - levels
        )
        breaks = find_breaks(means, LEVEL_PENALTY)
    return dict(zip(map(int, measured), map(float, means), strict=True))


def _find_local_medians(
    measured: Numbers, columns: Numbers, values: Values, breaks: Sequence[int]
) -> Values:
    """Return the median of the values near each measured day, up to the next break."""
    edges = np.array([0, *breaks, len(measured)])
    segments = np.searchsorted(edges, np.arange(len(measured)), side="right")
    first = np.maximum(np.searchsorted(measured, measured - LEVEL_DAYS), edges[segments - 1])
    last = np.minimum(
        np.searchsorted(measured, measured + LEVEL_DAYS, side="right"), edges[segments]
    )
    order = np.argsort(columns, kind="stable")
    ordered, starts = values[order], np.searchsorted(columns[order], np.arange(len(measured) + 1))
    return np.array(
        [_find_median(ordered[starts[a] : starts[b]]) for a, b in zip(first, last, strict=True)]
    )


def _find_median(values: Values) -> float:
    """Return the median; ``numpy.median`` takes ten times as long for a hundred values."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _find_medians(items: Numbers, values: Values) -> Values:
    return np.array([np.median(values[items == item]) for item in range(int(items.max()) + 1)])


def _shrink_means(items: Numbers, values: Values) -> Values:
    """Return the means of items as random effects, shrunk towards zero by the method of moments."""
    counts = np.bincount(items)
    means = np.bincount(items, weights=values) / counts
    within = float(((values - means[items]) ** 2).sum()) / max(len(values) - len(counts), 1)
    between = (float((counts * means**2).sum()) - len(counts) * within) / len(values)
    return means * counts / (counts + within / between) if between > 0 else np.zeros(len(counts))
