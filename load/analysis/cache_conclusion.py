"""Conclusions on reads through caches, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from treehammer.load.analysis.cache_cost import LIMIT, CacheComparison, LogMean
from treehammer.load.analysis.cache_reads import STATES, TEST, WHOLE_COPY
from treehammer.text_formatting import format_significant


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
    release = comparison.costed_releases[-1]
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
