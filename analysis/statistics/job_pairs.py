"""Reduction of executions to one number per job: pairs, unpaired values, controls and groups.

Pairs are made within a job. Only good executions enter a figure of a group; failed, implausible and
unsupported ones are counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median, pstdev, stdev
from typing import Any, NamedTuple, TypeVar

from treehammer.analysis.statistics.estimates import Estimate, combine_estimates, estimate_mean
from treehammer.analysis.statistics.sample import (
    HEADLINE_METRICS,
    POSSIBLE_RANGE_S,
    Sample,
    count_hosts,
    find_varying_axes,
    identify_unit,
    natural_sort_key,
    parse_variant,
)
from treehammer.analysis.statistics.verdict import MIN_HOSTS
from treehammer.collectors.job_spec import CONTROL, TIMED
from treehammer.collectors.record.outcome import Outcome, classify_outcome
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.evidence import ControlCheck
from treehammer.sql.read.campaign_counts import select_counted

T = TypeVar("T")

#: Reasons for excluding an execution, in addition to :meth:`Sample.reason_unusable`.
UNPAIRED_EXECUTION = "other half missing or unusable"
EARLIER_ATTEMPT = "earlier attempt"
DIRTY_TREE = "dirty beside clean"


@dataclass(frozen=True)
class JobPair:
    """One job's paired effect: ``d`` is the median over its rounds of ln(B/A).

    ``a`` and ``b`` are the means of the metric itself over the executions of the same rounds, in its
    unit, as measured: ``b / a`` need not be exp(d).  In paired mode ``launches`` holds the recorded
    ln(B/A) of each launch, and ``d`` is their mean.  ``through_base`` says that each is the difference ln(B/base) - ln(A/base) of two
    launches, because the job launched both values with a third one.  ``cpu_s`` is the CPU of the
    loops on the side with less, over all its rounds and passes; None where it was not measured.
    ``hour`` is that of its first execution, counted from 1970 UTC.
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
    through_base: bool = False
    hour: int = 0


@dataclass(frozen=True)
class JobValue:
    """One job's metric on one side, in its unit: ``value`` is the median over its rounds, ``mean`` the mean.

    ``hour`` is that of its first execution, counted from 1970 UTC.
    """

    job_id: str
    host: str
    value: float
    mean: float
    cpu_s: float | None
    hour: int = 0


#: Unit and round of an execution.
RoundKey = tuple[str, int, int]


class _Round(NamedTuple):
    """Usable executions of both sides in one round; ``ratio`` is ln(B/A) as a launch recorded it."""

    a: Sequence[Sample]
    b: Sequence[Sample]
    ratio: float | None

    @property
    def executions(self) -> tuple[Sample, ...]:
        """Executions of either side."""
        return (*self.a, *self.b)


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
    a: Iterable[Sample],
    b: Iterable[Sample],
    metric: str,
    elsewhere: Collection[RoundKey] = (),
) -> tuple[list[JobPair], Counter[str]]:
    """Pair both sides inside each job.

    A round counts when both its halves are usable and belong to the same attempt.  Of several
    attempts of a job the last one with a whole round counts: a retry runs on another slot.  Where
    no round holds both sides, launches of either side with one base are paired through it.

    Args:
        a, b: executions of both sides.
        metric: the metric.
        elsewhere: rounds in which a third value of the compared axis ran; their lone halves are
            complete and not left out.

    Returns:
        one pair a job, in order of job id, and how many executions were left out for which reason.
    """
    rounds: dict[RoundKey, tuple[list[Sample], list[Sample]]] = defaultdict(lambda: ([], []))
    for side, samples in enumerate((a, b)):
        for sample in samples:
            rounds[(*sample.unit, sample.round)][side].append(sample)
    left_out: Counter[str] = Counter()
    complete: list[_Round] = []
    one_sided: list[tuple[list[Sample], list[Sample]]] = []
    for key, halves in sorted(rounds.items()):
        usable_a, usable_b = (_select_usable(half, metric, left_out) for half in halves)
        if usable_a and usable_b:
            ratio = _find_launch_ratio(usable_a, usable_b, metric)
            complete.append(_Round(usable_a, usable_b, ratio))
        elif key in elsewhere:
            one_sided.append((usable_a, usable_b))
        else:
            left_out[UNPAIRED_EXECUTION] += len(usable_a) + len(usable_b)
    through_base = not complete
    complete = complete or list(_pair_through_base(one_sided, metric))
    jobs = select_last_attempts(complete, lambda round_: round_.a[0].unit)
    pairs = [
        replace(_make_pair(rounds_of, metric), through_base=through_base)
        for rounds_of in jobs.values()
    ]
    counted_rounds = chain.from_iterable(jobs.values())
    left_out[EARLIER_ATTEMPT] += _count_executions(complete) - _count_executions(counted_rounds)
    return pairs, +left_out


def _pair_through_base(
    one_sided: Iterable[tuple[Sequence[Sample], Sequence[Sample]]], metric: str
) -> Iterator[_Round]:
    """Pair launches of one attempt that recorded ln(value/base), in order of their rounds."""
    launches: dict[tuple[str, int], tuple[list[Sample], list[Sample]]] = defaultdict(
        lambda: ([], [])
    )
    for halves in one_sided:
        for side, half in enumerate(halves):
            for sample in half:
                if metric in sample.launch_ratios:
                    launches[sample.job_id, sample.attempt][side].append(sample)
    for of_a, of_b in launches.values():
        for a, b in zip(of_a, of_b, strict=False):
            ratio = b.launch_ratios[metric] - a.launch_ratios[metric]
            yield _Round((a,), (b,), ratio)


def _count_executions(rounds: Iterable[_Round]) -> int:
    return sum(len(round_.executions) for round_ in rounds)


def collect_job_values(
    samples: Iterable[Sample], metric: str
) -> tuple[list[JobValue], Counter[str]]:
    """Collect one value per job, from its last attempt with a usable execution, and count exclusions."""
    left_out: Counter[str] = Counter()
    usable = _select_usable(samples, metric, left_out)
    jobs = select_last_attempts(usable, lambda sample: sample.unit)
    left_out[EARLIER_ATTEMPT] += len(usable) - sum(map(len, jobs.values()))
    values = [
        JobValue(
            job_id=executions[0].job_id,
            host=min(sample.host for sample in executions),
            value=median(sample.metrics[metric] for sample in executions),
            mean=_average(executions, metric),
            cpu_s=_sum_loop_cpu(executions),
            hour=_find_hour(executions),
        )
        for executions in jobs.values()
    ]
    return values, +left_out


def select_last_attempts(
    executions: Iterable[T], of: Callable[[T], tuple[str, int]]
) -> dict[str, list[T]]:
    """Map each job, in order, to its executions in the last attempt that has any.

    Args:
        executions: those that count.
        of: job and attempt of one.
    """
    jobs: dict[str, dict[int, list[T]]] = defaultdict(lambda: defaultdict(list))
    for execution in executions:
        job, attempt = of(execution)
        jobs[job][attempt].append(execution)
    return {job: attempts[max(attempts)] for job, attempts in sorted(jobs.items())}


def _select_usable(samples: Iterable[Sample], metric: str, left_out: Counter[str]) -> list[Sample]:
    usable = []
    for sample in samples:
        reason = sample.reason_unusable(metric)
        if reason:
            left_out[reason] += 1
        else:
            usable.append(sample)
    return usable


def _make_pair(rounds: Sequence[_Round], metric: str) -> JobPair:
    launches = [round_ for round_ in rounds if round_.ratio is not None]
    counted_rounds = launches or rounds
    ratios = tuple(round_.ratio for round_ in launches if round_.ratio is not None)
    sides_a, sides_b, _ = zip(*counted_rounds, strict=True)
    a, b = [*chain(*sides_a)], [*chain(*sides_b)]
    cpu_a, cpu_b = _sum_loop_cpu(a), _sum_loop_cpu(b)
    return JobPair(
        job_id=a[0].job_id,
        campaign_id=min(sample.campaign_id for sample in (*a, *b)),
        host=min(sample.host for sample in (*a, *b)),
        rounds=len(counted_rounds),
        a=_average(a, metric),
        b=_average(b, metric),
        d=fmean(ratios) if ratios else _find_median_ratio(rounds, metric),
        cpu_s=None if cpu_a is None or cpu_b is None else min(cpu_a, cpu_b),
        launches=ratios,
        hour=_find_hour((*a, *b)),
    )


def _average(samples: Iterable[Sample], metric: str) -> float:
    return fmean(sample.metrics[metric] for sample in samples)


def _find_hour(samples: Iterable[Sample]) -> int:
    return min(sample.started_us for sample in samples) // 3_600_000_000


def _find_median_ratio(rounds: Sequence[_Round], metric: str) -> float:
    """Find the median over rounds of ln(B/A) of sequential executions, each side's median of a round."""
    return median(
        math.log(median(sample.metrics[metric] for sample in round_.b))
        - math.log(median(sample.metrics[metric] for sample in round_.a))
        for round_ in rounds
    )


def _find_launch_ratio(a: Sequence[Sample], b: Sequence[Sample], metric: str) -> float | None:
    """Find ln(B/A) of a launch; it is recorded on one half, which may be either side here."""
    for side, sign in ((a, -1), (b, 1)):
        for sample in side:
            if metric in sample.launch_ratios:
                return sign * sample.launch_ratios[metric]
    return None


def _sum_loop_cpu(samples: Sequence[Sample]) -> float | None:
    """Return the CPU seconds of all loops; None where one of them is missing or impossible."""
    recorded = [sample.loop_cpu_s for sample in samples]
    low, high = POSSIBLE_RANGE_S
    times = [seconds for seconds in recorded if seconds is not None and low <= seconds <= high]
    return math.fsum(times) if len(times) == len(recorded) else None


def check_controls(
    samples: Iterable[Sample], jobs: Collection[str], axis: str
) -> tuple[ControlCheck, ...]:
    """Check the controls of some jobs, for each headline metric that they recorded."""
    controls = [sample for sample in samples if sample.kind == CONTROL and sample.job_id in jobs]
    bases = {str(sample.axis_value(axis)) for sample in controls}
    base = bases.pop() if len(bases) == 1 else ""
    checks = []
    for metric in HEADLINE_METRICS:
        usable = _select_usable(controls, metric, Counter())
        usable = [control for control in usable if metric in control.launch_ratios]
        if usable:
            checks.append(_summarize_controls(metric, base, usable))
    return tuple(checks)


def _summarize_controls(metric: str, base: str, controls: Sequence[Sample]) -> ControlCheck:
    ratios = [control.launch_ratios[metric] for control in controls]
    spread, estimate = stdev(ratios) if len(ratios) > 1 else None, estimate_mean(ratios)
    low, high = estimate.interval() if estimate else (None, None)
    sharing = sum(control.shares_text for control in controls)
    return ControlCheck(metric, base, len(ratios), fmean(ratios), spread, low, high, sharing)


Row = Mapping[str, Any]
Key = tuple[Scalar | None, ...]


@dataclass(frozen=True)
class MeanAndRms:
    """Mean of repeated executions and their RMS deviation from it, in the metric's unit.

    The RMS divides by n, as study S0's error bars do.
    """

    n: int
    mean: float
    rms: float


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean over jobs with its 95 % t interval, over hosts from three on, in the metric's unit.

    A job counts by the mean of its executions.  ``low`` and ``high`` are None where fewer than two
    jobs, or jobs without any spread, say nothing of certainty.
    """

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ExecutionGroup:
    """Timed executions that agree in their key.

    ``rows`` are the usable ones; ``outcomes`` counts all, but those that a later attempt repeated.
    """

    key: Key
    rows: tuple[Row, ...]
    outcomes: Mapping[Outcome, int]

    @property
    def jobs(self) -> int:
        """Number of jobs that the usable executions belong to."""
        return len({row["job_id"] for row in self.rows})

    @property
    def hosts(self) -> int:
        """Number of known hosts on which they ran."""
        return count_hosts(self.rows)

    def mean_and_rms(self, metric: str) -> MeanAndRms | None:
        """Summarize over executions; None where none recorded the metric."""
        values = [row[metric] for row in self.rows if row[metric] is not None]
        return MeanAndRms(len(values), fmean(values), pstdev(values)) if values else None

    def mean_over_jobs(self, metric: str) -> MeanWithInterval | None:
        """Summarize over jobs; None where none recorded the metric."""
        by_host = self.job_values(metric)
        if not by_host:
            return None
        mean, estimate = _estimate_jobs(by_host)
        return MeanWithInterval(mean, *(estimate.interval() if estimate else ()))

    def ratio_over_jobs(self, other: ExecutionGroup, metric: str) -> MeanWithInterval | None:
        """Compute the ratio to another group, as a geometric mean over jobs.

        Unpaired (Welch's t on the logarithms); None where either has no positive values, without an
        interval where either has fewer than two jobs.
        """
        sides = self.job_values(metric), other.job_values(metric)
        if not all(sides) or min(chain(*sides[0].values(), *sides[1].values())) <= 0:
            return None
        logs = ({host: [*map(math.log, of_host)] for host, of_host in s.items()} for s in sides)
        (mean, estimate), (base_mean, base_estimate) = map(_estimate_jobs, logs)
        if estimate is None or base_estimate is None:
            return MeanWithInterval(math.exp(mean - base_mean))
        ratio = combine_estimates((estimate, base_estimate), (1.0, -1.0))
        return MeanWithInterval(math.exp(ratio.mean), *map(math.exp, ratio.interval()))

    def job_values(self, metric: str) -> dict[str, list[float]]:
        """Return one value per job by host: the mean over the executions of its last attempt that has one.

        Comparisons and intervals of figures count a job in the same way. A job without a known host
        stands alone, and so does a common start of jobs.
        """
        measured = (row for row in self.rows if row[metric] is not None)
        units = select_last_attempts(measured, identify_unit)
        by_host: dict[str, list[float]] = defaultdict(list)
        for unit, (row, *rows) in units.items():
            host = not row.get("start_planned_us") and (row.get("machine") or row["host"])
            by_host[host or unit].append(fmean(execution[metric] for execution in (row, *rows)))
        return by_host


def _estimate_jobs(by_host: Mapping[str, Sequence[float]]) -> tuple[float, Estimate | None]:
    """Estimate the mean over jobs: from three hosts on by Student's t over hosts, else over the jobs.

    Jobs on one host are not independent. Each host stands for what the mean loses without its jobs: the
    jackknife's pseudovalues, whose variance is cluster-robust also where one host has most of the jobs.
    """
    units = [*chain.from_iterable(by_host.values())]
    mean, jobs, others = math.fsum(units) / len(units), len(units), len(by_host) - 1
    if len(by_host) >= MIN_HOSTS:
        units = [
            mean + others / (jobs - len(values)) * math.fsum(value - mean for value in values)
            for values in by_host.values()
        ]
    scale = max(map(abs, units)) or 1.0  # no unit of a metric is too small for a spread
    estimate = estimate_mean([unit / scale for unit in units])
    return mean, estimate and replace(estimate, mean=mean, se=scale * estimate.se)


def group_executions(rows: Iterable[Row], key: Callable[[Row], Key]) -> list[ExecutionGroup]:
    """Group the timed executions by a key, in natural order of its parts."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == TIMED:
            groups[key(row)].append(row)

    def sort_key(key: Key) -> tuple[Any, ...]:
        return tuple((2,) if value is None else natural_sort_key(value) for value in key)

    return [
        ExecutionGroup(
            key_,
            tuple(row for row in groups[key_] if classify_outcome(row) is Outcome.GOOD),
            Counter(map(classify_outcome, select_counted(groups[key_]))),
        )
        for key_ in sorted(groups, key=sort_key)
    ]


def list_axes(rows: Iterable[Row]) -> tuple[str, ...]:
    """List the axes of the rows' variants."""
    names = (name for row in rows for name, _ in parse_variant(row["variant"]).values)
    return tuple(dict.fromkeys(names))


def lookup_value(row: Row, name: str) -> Scalar | None:
    """Get a row's value for an axis of its variant or for a column."""
    axis_values = dict(parse_variant(row["variant"]).values)
    value: Scalar | None = axis_values[name] if name in axis_values else row.get(name)
    return value


def find_distinguishing_names(
    rows: Iterable[Row], beside: Collection[str] = ("site", "door")
) -> tuple[str, ...]:
    """Find the names that distinguish groups: varying axes, and these columns."""
    timed = [row for row in rows if row["kind"] == TIMED]
    varying = find_varying_axes(parse_variant(row["variant"]) for row in timed)
    implied = set(_find_implied_columns(timed))
    columns = [
        name for name in beside if name not in implied and len({row[name] for row in timed}) > 1
    ]
    return (*columns, *varying)


def _find_implied_columns(rows: Sequence[Row]) -> Iterator[str]:
    """Find columns that say no more than another one."""
    if all(row.get("storage_site") == row.get("site") for row in rows):
        yield "storage_site"
    contents = {(row.get("dataset"), row.get("dataset_hash")) for row in rows}
    if len({name for name, _ in contents}) == len(contents):
        yield "dataset_hash"
    tests = {(row.get("test_name"), row.get("test_hash")) for row in rows}
    yield "test_hash" if len({name for name, _ in tests}) == len(tests) else "test_name"
