"""Reads through a cache: rates, and the cost against the direct door in the same round of a job."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from treehammer.analysis.statistics.estimates import MIN_SPREAD, Estimate
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.text_formatting import format_significant

#: Test whose measurements are compared.
TEST = "cache-read"
#: States of a cache before an execution; any other state is that of a door without a cache.
STATES = ("warm", "half", "cold")
#: Axes of the test that the comparison shows apart; others form the setup.
PATTERN, FRACTION, BLOCK, LATENCY = "pattern", "fraction", "block_kib", "latency_ms"
_SHOWN_AXES = (PATTERN, FRACTION, BLOCK, LATENCY, "server_cache")
#: Metrics of the test: seconds and rate.
SECONDS, RATE = "extra_total_s", "extra_achieved_mb_per_s"
#: The cache's counts: bytes fetched from the origin for each byte asked, the share of bytes that it
#: calls hits, which may be on their way, and the share that it held before.
COUNTS = ("extra_fetch_ratio", "extra_hit_share", "extra_stored_share")
METRICS = (SECONDS, RATE, *COUNTS)
#: Columns that tell executions apart.
COLUMNS = (
    *("job_id", "round", "position", "site", "storage_site", "dataset"),
    *("door", "server_version", "server_cache_state", "variant"),
)
#: Reads of whole files by the protocol's copy program.
WHOLE_COPY = "whole copy"
#: Cost from which users of caches call one bad: 30 % more time than without it.
LIMIT = 1.3


class CacheRead(NamedTuple):
    """One execution.

    Attributes:
        job: identity of the job.
        round: round in the job, whose executions differ by the door alone.
        setup: site, dataset and the axes that the comparison does not show apart.
        door: name of the door.
        release: version of the door's server.
        state: one of :data:`STATES`, '' without a cache.
        latency_ms: round trip added on the way to the origin.
        read: share of the file that was asked, in per cent, or :data:`WHOLE_COPY`.
        block_kib: block of the client.
        metrics: those of :data:`METRICS` that were recorded.
    """

    job: str
    round: int
    setup: str
    door: str
    release: str
    state: str
    latency_ms: float
    read: str
    block_kib: float
    metrics: Mapping[str, float]


def parse_read(columns: Mapping[str, Any], metrics: Mapping[str, float | None]) -> CacheRead | None:
    """Parse an execution; None for one that is no read with a block size.

    Args:
        columns: values of :data:`COLUMNS`.
        metrics: values of :data:`METRICS`.
    """
    try:
        variant = json.loads(columns["variant"])
        block, latency = float(variant[BLOCK]), float(variant.get(LATENCY) or 0)
        is_copy = variant.get(PATTERN) == "copy"
        read = WHOLE_COPY if is_copy else f"{100 * float(variant[FRACTION]):g} %"
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    recorded = {name: value for name, value in metrics.items() if value is not None}
    if recorded.get(SECONDS, 0.0) <= 0 or recorded.get(RATE, 0.0) <= 0:
        return None
    storage_site = columns["storage_site"] or columns["site"]
    others = {name: value for name, value in variant.items() if name not in _SHOWN_AXES}
    setup = [storage_site, f"jobs at {columns['site']}" * (storage_site != columns["site"])]
    setup += [
        columns["dataset"] or "",
        *(f"{name}={value}" for name, value in sorted(others.items())),
    ]
    state = columns["server_cache_state"]
    return CacheRead(
        columns["job_id"],
        columns["round"],
        "; ".join(filter(None, setup)),
        columns["door"],
        columns["server_version"] or "unknown release",
        state if state in STATES else "",
        latency,
        read,
        block,
        recorded,
    )


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
    """A cache under one condition; ``release`` is '' for the direct door."""

    release: str
    state: str
    latency_ms: float
    read: str
    block_kib: float


@dataclass(frozen=True)
class CacheCell:
    """Reads of one kind under one condition.

    Attributes:
        key: of the cell.
        rates: independent values of MB/s, in ln.
        costs: ln of the time through the cache over that of the direct door; empty without pairs.
        rate: mean of the rates.
        cost: mean of the costs; None without any.
        jobs: number of jobs.
        counts: means of the cache's known :data:`COUNTS`.
    """

    key: CellKey
    rates: Sequence[float]
    costs: Sequence[float]
    rate: LogMean
    cost: LogMean | None
    jobs: int
    counts: Mapping[str, float]


class CacheComparison:
    """All cells of one setup.

    Args:
        reads: executions of the setup.
    """

    def __init__(self, reads: Iterable[CacheRead]) -> None:
        by_key: dict[CellKey, list[tuple[CacheRead, float | None]]] = defaultdict(list)
        for read, cost in _pair_reads([*reads]):
            key = CellKey(
                read.release if read.state else "",
                read.state,
                read.latency_ms,
                read.read,
                read.block_kib,
            )
            by_key[key].append((read, cost))
        units = {key: _list_units(by_key[key]) for key in sorted(by_key, key=_rank_key)}
        self._rate_spreads = _pool_spreads((key, rates) for key, (rates, _) in units.items())
        self._cost_spreads = _pool_spreads((key, costs) for key, (_, costs) in units.items())
        self.cells = {
            key: CacheCell(
                key,
                rates,
                costs,
                average_cells([rates], self._rate_spreads[_condition_of(key)]),
                average_cells([costs], self._cost_spreads[_condition_of(key)]) if costs else None,
                len({read.job for read, _ in by_key[key]}),
                _average_counts([read for read, _ in by_key[key]]),
            )
            for key, (rates, costs) in units.items()
        }

    @cached_property
    def cached(self) -> list[CacheCell]:
        """Cells of reads through a cache."""
        return [cell for key, cell in self.cells.items() if key.release]

    @cached_property
    def releases(self) -> list[str]:
        """Releases of caches, the oldest first."""
        return list(dict.fromkeys(cell.key.release for cell in self.cached))

    @cached_property
    def conditions(self) -> list[tuple[str, float]]:
        """States with distances that were measured, as panels show them."""
        pairs = {(cell.key.state, cell.key.latency_ms) for cell in self.cached}
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

    def pool_cost(
        self, release: str, condition: tuple[str, float], read: str, blocks: Collection[float] = ()
    ) -> LogMean | None:
        """Average the cost over sizes of blocks, by default all; None without a pair."""
        costs = [
            cell.costs
            for block in blocks or self.blocks
            if (cell := self.cells.get(CellKey(release, *condition, read, block))) and cell.costs
        ]
        if not costs or (blocks and len(costs) < len(blocks)):
            return None
        return average_cells(costs, self._cost_spreads[release, *condition])

    def list_common_blocks(self, condition: tuple[str, float], read: str) -> list[float]:
        """List the sizes of blocks whose cost is known for all releases."""
        return [
            block
            for block in self.blocks
            if all(self.pool_cost(r, condition, read, [block]) for r in self.releases)
        ]


def _rank_key(key: CellKey) -> tuple[Any, ...]:
    state = STATES.index(key.state) if key.state else len(STATES)
    read = (key.read == WHOLE_COPY, natural_sort_key(key.read))
    return (
        not key.release,
        natural_sort_key(key.release),
        state,
        key.latency_ms,
        read,
        key.block_kib,
    )


def _pair_reads(reads: Sequence[CacheRead]) -> list[tuple[CacheRead, float | None]]:
    """Add ln of the time over that of the direct door in the same round to each read."""
    direct: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for read in reads:
        if not read.state:
            direct[_pair_key(read)].append(math.log(read.metrics[SECONDS]))
    doors = {(read.release, read.door) for read in reads if read.state}
    counts = Counter(release for release, _ in doors)
    pairs = []
    for read in reads:
        times = direct.get(_pair_key(read)) if read.state else None
        cost = math.log(read.metrics[SECONDS]) - fmean(times) if times else None
        is_ambiguous = read.state and counts[read.release] > 1  # several caches of one release
        release = f"{read.release} ({read.door})" if is_ambiguous else read.release
        pairs.append((read._replace(release=release), cost))
    return pairs


def _pair_key(read: CacheRead) -> tuple[Any, ...]:
    return read.job, read.round, read.setup, read.latency_ms, read.read, read.block_kib


def _condition_of(key: CellKey) -> tuple[str, str, float]:
    return key.release, key.state, key.latency_ms


def _list_units(
    pairs: Iterable[tuple[CacheRead, float | None]],
) -> tuple[Sequence[float], Sequence[float]]:
    """List the independent rates and costs of a cell."""
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    for read, cost in pairs:
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
            by_condition[_condition_of(key)].append(values)
    return {condition: Spread.pool(values) for condition, values in by_condition.items()}


def _average_counts(reads: Iterable[CacheRead]) -> Mapping[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for read in reads:
        for name in COUNTS:
            if name in read.metrics:
                values[name].append(read.metrics[name])
    return {name: fmean(numbers) for name, numbers in values.items()}


def list_setups(reads: Iterable[CacheRead]) -> list[str]:
    """List the setups, the one with most reads through a cache first."""
    counts = Counter(read.setup for read in reads if read.state)
    return [setup for setup, _ in counts.most_common()]


def shorten_setups(setups: Sequence[str]) -> dict[str, str]:
    """Shorten setups to what distinguishes them, beside site and dataset."""
    parts = [setup.split("; ") for setup in setups]
    common = (
        set.intersection(*map(set, parts)) if len(parts) > 1 else set(parts[0]) if parts else set()
    )
    return {
        setup: "; ".join(part for part in own if "=" not in part or part not in common)
        for setup, own in zip(setups, parts, strict=True)
    }


# --- The concluding sentence


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
    release = next(
        r for r in reversed(comparison.releases) if any(_list_costs(comparison, r, "all"))
    )
    read = next(r for r in comparison.reads if any(_list_costs(comparison, release, r)))
    clauses: list[str] = []
    for state in STATES:
        by_distance = [
            (condition[1], cost)
            for condition in comparison.conditions
            if condition[0] == state and (cost := comparison.pool_cost(release, condition, read))
        ]
        if by_distance:
            subject = f"{state} reads of {read}" if not clauses else f"{state} ones"
            clauses.append(f"{subject} {_describe_distances(by_distance)}")
    above = sum(cost.ratio > LIMIT for cost in costs)
    return (
        f"Through the cache ({release}), {'; '.join(clauses)}. "
        f"{above} of {len(costs)} cells of the map cost more than {100 * (LIMIT - 1):.0f} %."
    )


def _list_costs(comparison: CacheComparison, release: str, read: str) -> Iterable[LogMean]:
    for cell in comparison.cached:
        if cell.cost and cell.key.release == release and read in ("all", cell.key.read):
            yield cell.cost


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
    ratio, ends = cost.ratio, cost.ends
    if ratio >= 2:
        interval = _format_interval([format_significant(end) for end in ends or ()])
        return f"cost a factor of {format_significant(ratio)}{interval}"
    percents = [100 * (end - 1) for end in ends or ()]
    if ratio < 1:
        interval = _format_interval([f"{-percent:.0f}" for percent in reversed(percents)])
        return f"save {100 * (1 - ratio):.0f} %{interval}"
    interval = _format_interval([f"{percent:.0f}" for percent in percents])
    return f"cost {100 * (ratio - 1):.0f} %{interval}"


def _format_interval(ends: Sequence[str]) -> str:
    return f" [{', '.join(end.replace('-', '−') for end in ends)}]" if ends else ""
