"""Reads through a cache: rates, and the cost against the direct door in the same round of a job."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from treehammer.analysis.statistics.estimates import MIN_SPREAD, Estimate
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.load.analysis.cache_reads import (
    COUNTS,
    RATE,
    SECONDS,
    STATES,
    TEST,
    WHOLE_COPY,
    CacheRead,
)
from treehammer.text_formatting import format_significant

#: Name of the door without a cache.
DIRECT = "direct"
#: Cost from which users of caches call one bad: 30 % more time than without it.
LIMIT = 1.3


class LogMean(NamedTuple):
    """A mean of ln, and its estimate; None with too few values for an interval."""

    mean: float
    estimate: Estimate | None

    @property
    def ratio(self) -> float:
        """The mean as a ratio or value."""
        return math.exp(self.mean)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval of :attr:`ratio`; None without one."""
        if self.estimate is None:
            return None
        low, high = self.estimate.interval()
        return math.exp(min(low, 700.0)), math.exp(min(high, 700.0))


def list_units(by_job: Mapping[str, Collection[float]]) -> list[float]:
    """List the independent values: the mean of each job, or the rounds of a single one."""
    if len(by_job) == 1:
        return [*next(iter(by_job.values()))]
    return [fmean(values) for values in by_job.values()]


def average_cells(cells: Sequence[Sequence[float]], spread: Spread) -> LogMean:
    """Average the means of cells, each with the same weight.

    Args:
        cells: independent values of each cell.
        spread: of a value around its cell's mean.
    """
    mean = fmean(fmean(values) for values in cells)
    error = spread.deviation * math.sqrt(sum(1 / len(values) for values in cells)) / len(cells)
    return LogMean(mean, Estimate(mean, error, spread.df) if error > MIN_SPREAD else None)


class Spread(NamedTuple):
    """Standard deviation of values around the means of their cells, with degrees of freedom."""

    deviation: float
    df: int

    @classmethod
    def pool(cls, cells: Iterable[Sequence[float]]) -> Spread:
        """Pool the spread of cells with few values each, in which it is about the same in ln."""
        squares, df = 0.0, 0
        for values in cells:
            mean = fmean(values)
            squares += sum((value - mean) ** 2 for value in values)
            df += len(values) - 1
        return cls(math.sqrt(squares / df) if df else 0.0, df)


class CellKey(NamedTuple):
    """A cache, or the direct door, under one condition.

    Attributes:
        release: of the cache, with what else distinguishes caches of this release; of the direct door
            :data:`DIRECT`.
        state: of the cache; of the direct door that of the cache in the same jobs, '' without one.
    """

    release: str
    state: str
    latency_ms: float
    read: str
    block_kib: float

    @property
    def is_direct(self) -> bool:
        """Whether these are reads without a cache."""
        return self.release.split(" (")[0] == DIRECT

    @property
    def condition(self) -> tuple[str, float]:
        """State and distance."""
        return self.state, self.latency_ms

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key: caches by release, then the direct door."""
        state = STATES.index(self.state) if self.state in STATES else len(STATES)
        read = (self.read == WHOLE_COPY, natural_sort_key(self.read))
        place = (state, self.latency_ms, read, self.block_kib)
        return self.is_direct, _rank_release(self.release), *place


def _rank_release(release: str) -> tuple[Any, ...]:
    """Sort by version: 5.9 before 5.10, and candidates before their release."""
    final, is_candidate, candidate = release.partition("-rc")
    return natural_sort_key(final), not is_candidate, natural_sort_key(candidate)


@dataclass(frozen=True)
class CacheCell:
    """Reads of one kind under one condition.

    Attributes:
        key: of the cell.
        rates: independent values of MB/s, in ln.
        costs: ln of the time through the cache over that of the direct door; empty without pairs.
        rate: mean of the rates; None if the generator was always the limit.
        cost: mean of the costs; None without any.
        jobs: number of jobs.
        counts: means of the cache's known :data:`COUNTS`.
    """

    key: CellKey
    rates: Sequence[float]
    costs: Sequence[float]
    rate: LogMean | None
    cost: LogMean | None
    jobs: int
    counts: Mapping[str, float]


class CacheComparison:
    """All cells of one setup.

    Args:
        reads: executions of the setup.
        direct_door: door that costs refer to, by default the one in most pairs.
        shown_read: the only kind of read in :attr:`cells`; all contribute to the spread.

    Attributes:
        direct_doors: doors without a cache that were read, those in most pairs first.
        direct_door: the one that costs refer to; reads of the others are left out.
    """

    def __init__(
        self, reads: Iterable[CacheRead], direct_door: str = "", shown_read: str = ""
    ) -> None:
        reads = [*reads]
        self.direct_doors = _list_direct_doors(reads)
        self.direct_door = _choose_direct_door(self.direct_doors, direct_door)
        self._reads = [read for read in reads if read.state or read.door == self.direct_door]
        by_key = _group_by_cell(self._reads)
        units = {key: _list_units(by_key[key]) for key in sorted(by_key, key=lambda key: key.rank)}
        rate_spreads = _pool_spreads((key, rates) for key, (rates, _) in units.items())
        self._cost_spreads = _pool_spreads((key, costs) for key, (_, costs) in units.items())
        self.cells = {
            key: CacheCell(
                key,
                rates,
                costs,
                self._average(rates, rate_spreads, key),
                self._average(costs, self._cost_spreads, key),
                *_summarize_reads(by_key[key]),
            )
            for key, (rates, costs) in units.items()
            if shown_read in ("", key.read)
        }

    @staticmethod
    def _average(
        values: Sequence[float], spreads: Mapping[tuple[str, str, float], Spread], key: CellKey
    ) -> LogMean | None:
        return average_cells([values], spreads[key.release, *key.condition]) if values else None

    @cached_property
    def direct_releases(self) -> list[str]:
        """Releases of the direct door's server, the oldest first."""
        releases = {read.release for read in self._reads if not read.state}
        return sorted(releases, key=_rank_release)

    @cached_property
    def cached(self) -> list[CacheCell]:
        """Cells of reads through a cache."""
        return [cell for key, cell in self.cells.items() if not key.is_direct]

    @cached_property
    def releases(self) -> list[str]:
        """Releases of caches, the oldest first."""
        return list(dict.fromkeys(cell.key.release for cell in self.cached))

    @cached_property
    def conditions(self) -> list[tuple[str, float]]:
        """States with distances that were measured, as panels show them."""
        pairs = {cell.key.condition for cell in self.cached}
        return sorted(pairs, key=lambda pair: (STATES.index(pair[0]), pair[1]))

    @cached_property
    def reads(self) -> list[str]:
        """Kinds of reads, the smallest share first, whole copies last."""
        reads = {cell.key.read for cell in self.cached}
        return sorted(reads, key=lambda read: (read == WHOLE_COPY, natural_sort_key(read)))

    @cached_property
    def blocks(self) -> list[float]:
        """Sizes of blocks, the smallest first."""
        return sorted({cell.key.block_kib for cell in self.cached})

    def pool_cost(self, release: str, condition: tuple[str, float], read: str) -> LogMean | None:
        """Average the cost over all sizes of blocks; None without a pair."""
        costs = [
            cell.costs
            for block in self.blocks
            if (cell := self.cells.get(CellKey(release, *condition, read, block))) and cell.costs
        ]
        return average_cells(costs, self._cost_spreads[release, *condition]) if costs else None


def _list_direct_doors(reads: Sequence[CacheRead]) -> list[str]:
    """List the doors without a cache, those that were read beside one most often first."""
    cached_keys = {read.pair_key for read in reads if read.state}
    direct_reads = [read for read in reads if not read.state]
    counts = Counter({read.door: 0 for read in sorted(direct_reads, key=lambda read: read.door)})
    counts.update(read.door for read in direct_reads if read.pair_key in cached_keys)
    return [door for door, _ in counts.most_common()]


def _choose_direct_door(doors: Sequence[str], preferred: str) -> str:
    """Choose the door that costs refer to: the first without a preferred one; '' without any."""
    return preferred if preferred and preferred in doors else next(iter(doors), "")


def _group_by_cell(
    reads: Sequence[CacheRead],
) -> dict[CellKey, list[tuple[CacheRead, float | None]]]:
    """Group reads by cell, with the cost of each that has a direct read to compare with."""
    direct: dict[tuple[Any, ...], list[CacheRead]] = defaultdict(list)
    for read in reads:
        if not read.state:
            direct[read.pair_key].append(read)
    by_key: dict[CellKey, list[tuple[CacheRead, float | None]]] = defaultdict(list)
    for read, label in zip(reads, _label_caches(reads, direct), strict=True):
        state = read.state or (read.planned_state if read.planned_state in STATES else "")
        key = CellKey(label, state, read.latency_ms, read.read, read.block_kib)
        references = direct[read.pair_key] if read.state else ()
        # ln of the time over that of the direct reads of the same round.
        times = [math.log(reference.metrics[SECONDS]) for reference in references]
        cost = math.log(read.metrics[SECONDS]) - fmean(times) if times else None
        by_key[key].append((read, cost))
    return by_key


def _label_caches(
    reads: Sequence[CacheRead], direct: Mapping[tuple[Any, ...], Sequence[CacheRead]]
) -> list[str]:
    """Label each read with its release, and with what else differs between caches of this release."""
    caches = [_describe_cache(read, direct.get(read.pair_key, ())) for read in reads]
    values: dict[tuple[str, int], set[str]] = defaultdict(set)
    for release, *parts in caches:
        for place, part in enumerate(parts):
            values[release, place] |= {part} - {""}
    labels = []
    for release, *parts in caches:
        differing = [
            part for place, part in enumerate(parts) if part and len(values[release, place]) > 1
        ]
        labels.append(f"{release} ({', '.join(differing)})" if differing else release)
    return labels


def _describe_cache(read: CacheRead, references: Sequence[CacheRead]) -> tuple[str, ...]:
    """Describe a cache by its release, door, size of block and origin; the direct door by its release."""
    if not read.state:
        return DIRECT, read.release
    origin = read.origin or next((reference.release for reference in references), "")
    return (
        read.release,
        read.door,
        f"blocks of {read.cache_block_kib} KiB" if read.cache_block_kib else "",
        f"origin {origin}" if origin else "",
    )


def _list_units(
    pairs: Iterable[tuple[CacheRead, float | None]],
) -> tuple[Sequence[float], Sequence[float]]:
    """List the independent rates and costs of a cell."""
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    for read, cost in pairs:
        if read.metrics.get(RATE, 0.0) > 0:
            rates[read.job].append(math.log(read.metrics[RATE]))
        if cost is not None:
            costs[read.job].append(cost)
    return list_units(rates), list_units(costs)


def _pool_spreads(
    cells: Iterable[tuple[CellKey, Sequence[float]]],
) -> Mapping[tuple[str, str, float], Spread]:
    """Pool the spread over all reads and blocks of a release, state and distance."""
    by_condition: dict[tuple[str, str, float], list[Sequence[float]]] = defaultdict(list)
    for key, values in cells:
        if values:
            by_condition[key.release, *key.condition].append(values)
    return {condition: Spread.pool(values) for condition, values in by_condition.items()}


def _summarize_reads(
    pairs: Iterable[tuple[CacheRead, float | None]],
) -> tuple[int, Mapping[str, float]]:
    """Count the jobs of a cell, and average the counts of the cache."""
    jobs: set[str] = set()
    values: dict[str, list[float]] = defaultdict(list)
    for read, _ in pairs:
        jobs.add(read.job)
        for name in COUNTS:
            if name in read.metrics:
                values[name].append(read.metrics[name])
    return len(jobs), {name: fmean(numbers) for name, numbers in values.items()}


def conclude(comparison: CacheComparison) -> str:
    """Conclude in a sentence what the newest release costs, and in how many cells it is too much."""
    if not comparison.cached:
        return (
            f"Nothing was read through a cache in this selection: run the test {TEST} at a door "
            "that states its cache."
        )
    costs = [cell.cost for cell in comparison.cached if cell.cost]
    if not costs:
        return (
            "The cost of the cache is unknown: no job read through the direct door, too. Bundle both: "
            "-P bundle=door -P door=CACHE,DIRECT."
        )
    release = [*dict.fromkeys(cell.key.release for cell in comparison.cached if cell.cost)][-1]
    by_read = {
        read: {
            condition: cost
            for condition in comparison.conditions
            if (cost := comparison.pool_cost(release, condition, read))
        }
        for read in comparison.reads
    }
    # The smallest share of those that were read under most conditions.
    read = max(by_read, key=lambda name: len(by_read[name]))
    clauses = "; ".join(_describe_states(read, by_read[read]))
    return f"Through the cache ({release}), {clauses}. {_count_costly(costs)}"


def _describe_states(read: str, by_condition: Mapping[tuple[str, float], LogMean]) -> Iterator[str]:
    """Describe the costs of one kind of read by state; the kind is written once."""
    subject = "whole copies" if read == WHOLE_COPY else f"reads of {read}"
    for state in STATES:
        by_distance = [(ms, cost) for (of, ms), cost in by_condition.items() if of == state]
        if by_distance:
            name = _STATE_NAMES.get(state, state)
            yield f"{name} {subject} {_describe_distances(by_distance)}"
            subject = "ones"


def _count_costly(costs: Sequence[LogMean]) -> str:
    above = [cost for cost in costs if cost.ratio > LIMIT]
    certain = sum(cost.ends is not None and cost.ends[0] > LIMIT for cost in above)
    text = f"{len(above)} of {len(costs)} cells of the map cost more than {100 * (LIMIT - 1):.0f} %"
    return f"{text}, {certain} of them for certain." if above else f"{text}."


#: State -> its name in a sentence.
_STATE_NAMES = {"half": "half warm"}


def describe_condition(condition: tuple[str, float]) -> str:
    """Describe a state and a distance, e.g. ``cold, 40 ms away``."""
    state, latency = condition
    name = _STATE_NAMES.get(state, state)
    return f"{name}, {latency:g} ms away" if latency else name


def _describe_distances(by_distance: Sequence[tuple[float, LogMean]]) -> str:
    """Describe the costs at all distances; the verb is written once."""
    texts: list[str] = []
    last_verb = ""
    for latency_ms, cost in by_distance:
        verb, _, amount = describe_cost(cost).partition(" ")
        text = amount if verb == last_verb else f"{verb} {amount}"
        texts.append(f"at {latency_ms:g} ms {text}" if latency_ms else text)
        last_verb = verb
    return ", ".join(texts)


def describe_cost(cost: LogMean) -> str:
    """Describe a cost in words, e.g. ``cost 12 % [9, 15]`` or ``cost a factor of 3.1 [2.9, 3.3]``."""
    ratio, ends = cost.ratio, cost.ends or ()
    percent = _format_percent(ratio)
    percents = _format_interval(map(_format_percent, ends))
    if ends and ends[0] < 1 < ends[1]:
        return f"cost nothing certain ({percent} %{percents})".replace("(-", "(−")
    if ratio >= 2:
        interval = _format_interval(map(format_significant, ends))
        return f"cost a factor of {format_significant(ratio)}{interval}"
    if ratio < 1:
        interval = _format_interval(f"{100 * (1 - end):.0f}" for end in reversed(ends))
        return f"save {100 * (1 - ratio):.0f} %{interval}"
    return f"cost {percent} %{percents}"


def _format_percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f}"


def _format_interval(ends: Iterable[str]) -> str:
    text = ", ".join(ends).replace("-", "−")
    return f" [{text}]" if text else " (without an interval)"
