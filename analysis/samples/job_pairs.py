"""From executions to one number a job: pairs inside a job, or one value a job where none exist."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

from treehammer.analysis.samples.sample import Sample, is_possible_time

T = TypeVar("T")

#: Reasons for excluding an execution, in addition to :meth:`Sample.reason_unusable`.
UNPAIRED_EXECUTION = "other half missing or unusable"
EARLIER_ATTEMPT = "earlier attempt"
DIRTY_TREE = "dirty beside clean"


@dataclass(frozen=True)
class JobPair:
    """One job's paired effect: ``d`` is the median over its rounds of ln(B/A).

    ``a`` and ``b`` are the medians of the metric itself over the same rounds, in its unit.  In paired
    mode ``launches`` holds the recorded ln(B/A) of each launch, ``d`` is their mean, and ``b / a`` is
    exp(d).  ``cpu_s`` is the CPU of the loops on the side with less, over all its rounds and passes;
    None where it was not measured.
    """

    job_id: str
    campaign_id: str
    host: str
    rounds: int
    a: float
    b: float
    d: float
    cpu_s: float | None
    launches: tuple[float, ...] = ()


@dataclass(frozen=True)
class JobValue:
    """One job's value of the metric on one side, the median over its rounds, in its unit."""

    job_id: str
    host: str
    value: float
    cpu_s: float | None


def drop_dirty(
    a: Sequence[Sample], b: Sequence[Sample]
) -> tuple[list[Sample], list[Sample], Counter[str]]:
    """Drop executions of a dirty working tree where clean ones exist.

    The hash covers only the files that test.toml names, so a dirty tree may still have differed.
    """
    states = {sample.dirty for sample in (*a, *b)}
    if len(states) < 2:
        return list(a), list(b), Counter()
    clean_a, clean_b = ([s for s in side if not s.dirty] for side in (a, b))
    dropped = len(a) + len(b) - len(clean_a) - len(clean_b)
    return clean_a, clean_b, Counter({DIRTY_TREE: dropped})


def pair_jobs(
    a: Iterable[Sample], b: Iterable[Sample], metric: str
) -> tuple[list[JobPair], Counter[str]]:
    """Pair both sides inside each job.

    A round counts when both its halves are usable and belong to the same attempt.  Of several
    attempts of a job the last one with a whole round counts: a retry runs on another slot.

    Returns:
        one pair a job, in order of job id, and how many executions were left out for which reason.
    """
    rounds: dict[tuple[str, int, int], tuple[list[Sample], list[Sample]]] = defaultdict(
        lambda: ([], [])
    )
    for side, samples in enumerate((a, b)):
        for sample in samples:
            rounds[sample.job_id, sample.attempt, sample.round][side].append(sample)
    left_out: Counter[str] = Counter()
    whole: dict[str, dict[int, list[tuple[list[Sample], list[Sample]]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for (job, attempt, _), halves in sorted(rounds.items()):
        usable_a, usable_b = (_select_usable(half, metric, left_out) for half in halves)
        if usable_a and usable_b:
            whole[job][attempt].append((usable_a, usable_b))
        else:
            left_out[UNPAIRED_EXECUTION] += len(usable_a) + len(usable_b)
    pairs = []
    for _, attempts in sorted(whole.items()):
        last = max(attempts)
        for attempt, halves_of in attempts.items():
            if attempt != last:
                left_out[EARLIER_ATTEMPT] += sum(len(x) + len(y) for x, y in halves_of)
        pairs.append(_make_pair(attempts[last], metric))
    return pairs, +left_out


def collect_job_values(
    samples: Iterable[Sample], metric: str
) -> tuple[list[JobValue], Counter[str]]:
    """One value per job, from its last attempt with a usable execution, and exclusions."""
    left_out: Counter[str] = Counter()
    usable = _select_usable(samples, metric, left_out)
    jobs = select_last_attempts(usable, lambda sample: (sample.job_id, sample.attempt))
    left_out[EARLIER_ATTEMPT] += len(usable) - sum(map(len, jobs.values()))
    values = [
        JobValue(
            job_id=job,
            host=_first_host(counted),
            value=median(sample.metrics[metric] for sample in counted),
            cpu_s=_sum_loop_cpu(counted),
        )
        for job, counted in jobs.items()
    ]
    return values, +left_out


def select_last_attempts(
    executions: Iterable[T], of: Callable[[T], tuple[str, int]]
) -> dict[str, list[T]]:
    """Job, in order, -> its executions in the last attempt that has any.

    Args:
        executions: those that count.
        of: job and attempt of one.
    """
    jobs: dict[str, dict[int, list[T]]] = defaultdict(lambda: defaultdict(list))
    for one in executions:
        job, attempt = of(one)
        jobs[job][attempt].append(one)
    return {job: attempts[max(attempts)] for job, attempts in sorted(jobs.items())}


def _select_usable(samples: Iterable[Sample], metric: str, left_out: Counter[str]) -> list[Sample]:
    kept = []
    for sample in samples:
        reason = sample.reason_unusable(metric)
        if reason:
            left_out[reason] += 1
        else:
            kept.append(sample)
    return kept


def _make_pair(rounds: Sequence[tuple[list[Sample], list[Sample]]], metric: str) -> JobPair:
    rounds = [
        halves for halves in rounds if _find_launch_ratio(halves, metric) is not None
    ] or rounds
    everything = [sample for pair in rounds for half in pair for sample in half]
    a = [median(s.metrics[metric] for s in half) for half, _ in rounds]
    b = [median(s.metrics[metric] for s in half) for _, half in rounds]
    sides = [_sum_loop_cpu([s for pair in rounds for s in pair[side]]) for side in (0, 1)]
    ratios = [_find_launch_ratio(halves, metric) for halves in rounds]
    recorded = [ratio for ratio in ratios if ratio is not None]
    if recorded:
        d = fmean(recorded)
        center = fmean(math.log(value) for value in (*a, *b))
        a_value, b_value = math.exp(center - d / 2), math.exp(center + d / 2)
    else:
        d = median(math.log(y) - math.log(x) for x, y in zip(a, b, strict=True))
        a_value, b_value = median(a), median(b)
    return JobPair(
        job_id=everything[0].job_id,
        campaign_id=min(sample.campaign_id for sample in everything),
        host=_first_host(everything),
        rounds=len(rounds),
        a=a_value,
        b=b_value,
        d=d,
        cpu_s=None if None in sides else min(side for side in sides if side is not None),
        launches=tuple(recorded),
    )


def _find_launch_ratio(
    halves: tuple[Sequence[Sample], Sequence[Sample]], metric: str
) -> float | None:
    """Find ln(B/A) of a launch; it is recorded on one half, which may be either side here."""
    for side, sign in zip(halves, (-1, 1), strict=True):
        for sample in side:
            if metric in sample.launch_ratios:
                return sign * sample.launch_ratios[metric]
    return None


def _first_host(samples: Sequence[Sample]) -> str:
    """The one host of an attempt; records that name several are read the same in any order."""
    return min(sample.host for sample in samples)


def _sum_loop_cpu(samples: Sequence[Sample]) -> float | None:
    """CPU seconds of all loops; None where one of them is missing or impossible."""
    found = [sample.loop_cpu_s for sample in samples]
    times = [seconds for seconds in found if seconds is not None and is_possible_time(seconds)]
    return math.fsum(times) if len(times) == len(found) else None
