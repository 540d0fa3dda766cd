"""Verdicts of a comparison, the evidence stored with each, and when further launches can change them.

Controls (A/A launches) are part of the evidence. A sequential plan ends a campaign as soon as its
question is decided.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from pydantic_core import from_json

from treehammer.sql.core.rows import VerdictRow

#: Controls whose mean abs(ln(B/A)) is at most this are good, even if their interval excludes 0.
MAX_CONTROL_EFFECT = 0.01


@dataclass(frozen=True)
class ControlCheck:
    """Controls of one metric: mean and standard deviation of ln(B/A) over their launches.

    ``base`` is the value of the compared axis that is compared with itself, '' for several values.
    ``sd`` is None for a single launch, the 95 % interval also for launches without spread.
    """

    metric: str
    base: str
    launches: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None

    @property
    def is_off(self) -> bool:
        """Whether the two equal halves differ: beyond doubt, and by more than a bound."""
        if self.low is None or self.high is None or abs(self.mean) <= MAX_CONTROL_EFFECT:
            return False
        return self.low > 0 or self.high < 0

    @property
    def is_in_order(self) -> bool:
        """Whether several launches differ by less than the bound on average."""
        return self.launches > 1 and abs(self.mean) <= MAX_CONTROL_EFFECT


#: Scopes of a verdict: the hosts that took part (one or two), a site (three hosts and more), or
#: several sites.
HOST_SCOPE, SITE_SCOPE, SITES_SCOPE = "host", "site", "sites"
#: Scopes of a single series.
SERIES_SCOPES = (HOST_SCOPE, SITE_SCOPE)
#: Words of a test's name where a third value was launched with either side.
THROUGH_BASE = "through the base"
#: Error rate of a family of tests.
ALPHA = 0.05
#: Jobs that a claim about one host needs.
MIN_JOBS = 3
#: Hosts that a claim about a site needs, and sites that a claim about sites in general needs.
MIN_HOSTS, MIN_SITES = 3, 4
#: Effects within ±DELTA (in ln, so about 2 %) are too small to matter.
DEFAULT_DELTA = 0.02
#: Larger campaigns are not worth naming.
MAX_JOBS_NAMED = 10_000
#: Raised when a rule changes: a verdict is only as good as the rule that gave it.
RULE_VERSION = 3


class Verdict(StrEnum):
    """Conclusions of a comparison about B relative to A.

    ``slower`` means worse and ``faster`` better, of any headline metric.
    """

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    NOT_ENOUGH = "not enough data"
    TOO_LITTLE = "too little read"
    BUILD_DIFFERS = "build differs"
    VALUES_DIFFER = "values differ"
    OTHER_CONTENT = "other content"
    ONLY_IN_A = "only in A"
    ONLY_IN_B = "only in B"
    FAILED = "failed"

    @property
    def is_statistical(self) -> bool:
        """Whether the statistical rule was applied, rather than refused."""
        return self in STATISTICAL_VERDICTS


#: Verdicts of the statistical rule; :func:`.estimates.judge_family` defines them.
STATISTICAL_VERDICTS = (
    Verdict.FASTER,
    Verdict.SLOWER,
    Verdict.SAME,
    Verdict.DIFFERENT,
    Verdict.UNDECIDED,
)
#: Verdicts that the whole interval proves relevant.
CERTAIN_VERDICTS = (Verdict.FASTER, Verdict.SLOWER)
#: Verdicts that a larger campaign can change.
OPEN_VERDICTS = (Verdict.DIFFERENT, Verdict.UNDECIDED)
#: Verdicts that say one side has nothing to compare.
ONE_SIDED_VERDICTS = (Verdict.ONLY_IN_A, Verdict.ONLY_IN_B, Verdict.FAILED)
#: Verdicts that say both sides cannot be compared at all.
INCOMPARABLE_VERDICTS = (*ONE_SIDED_VERDICTS, Verdict.BUILD_DIFFERS, Verdict.VALUES_DIFFER)


@dataclass(frozen=True)
class VerdictEvidence:
    """Evidence for a verdict, stored with it as JSON.

    Attributes:
        why: the reason in words, where it is not the numbers alone.
        remedy: the suggested action.
        test: the statistical test, '' where none was made.
        unpaired: whether separate jobs were compared, for want of jobs that hold both sides.
        a_value, b_value: the metric on either side as measured, in its unit: means over jobs, each
            with the mean of its executions. Their ratio need not be the effect.
        jobs_a, jobs_b: jobs on either side (equal for pairs).
        p, p_adjusted: of 'no effect', alone and within the family.
        level: error rate of the row's interval, the one at which its claim was judged; 0.05 where
            it stands outside every family.
        unit, better: unit of the metric, and whether ``lower`` or ``higher`` values are better.
        delta: effects within ±delta (in ln) count as none.
        cpu_s: CPU seconds of a job's loops on the side with fewer, over all passes; median.
        launches: launches that are the units of a host's verdict, in paired mode; 0 where jobs are.
        same_data: result of comparing the value checksums.
        build: other differences between the builds.
        bundled: libraries that changed with the release because ROOT brings them along.
        repackaged: compilers that differ in the distributor's package alone.
        unknown: build facts that one side did not record.
        servers_a, servers_b: versions that the storage servers reported to either side.
        left_out: executions that were not used, by reason.
        sites: sites that were pooled, and tau, the spread between them (ln).
        shared_hosts: hosts that measured for several of these sites, with the sites.
        prediction: interval of the effect at one more site, 95 %; from four sites on.
        hosts_needed, sites_needed: size of the planned campaign (see ``jobs_needed`` of the row).
        site_shift: difference between the site's effect and the median of the other sites, over
            all variants, with its interval; empty unless the site stands apart.
        points_at_change: whether the sites that do not stand apart are slower together.
        among: all values that were asked together with B and share its correction.
        campaigns: identities of the campaigns that were asked, of all when empty.
        where: conditions on the measurements of both sides, as ``export --where`` takes them; of
            several ``=`` on one column any one will do.
        where_a, where_b: conditions on one side alone.
        of_a, of_b: columns and the values that single out the executions of either side.
        counters: exact counter -> its verdict, values on both sides and number of jobs; kept with
            the first row of each series.
        phases: phase of the read -> CPU seconds of both sides, change with its interval and number of
            pairs; kept with the first row of each series.
        looks: number of looks at a campaign that ends when it is decided, which share the error rate.
        controls: fields of each :class:`~treehammer.analysis.statistics.verdict.ControlCheck` of the
            comparison; kept with its first row.

    ``campaigns`` is None in older records: then the selection is not known.
    """

    why: str = ""
    remedy: str = ""
    test: str = ""
    unpaired: bool = False
    a_value: float | None = None
    b_value: float | None = None
    jobs_a: int = 0
    jobs_b: int = 0
    p: float | None = None
    p_adjusted: float | None = None
    level: float | None = None
    unit: str = "s"
    better: str = "lower"
    delta: float | None = None
    cpu_s: float | None = None
    launches: int = 0
    same_data: str = ""
    build: tuple[str, ...] = ()
    bundled: tuple[str, ...] = ()
    repackaged: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    servers_a: tuple[str, ...] = ()
    servers_b: tuple[str, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    shared_hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tau: float | None = None
    prediction: tuple[float, ...] = ()
    hosts_needed: int | None = None
    sites_needed: int | None = None
    site_shift: tuple[float, ...] = ()
    points_at_change: bool = False
    among: tuple[str, ...] = ()
    campaigns: tuple[str, ...] | None = None
    where: tuple[str, ...] | None = None
    where_a: tuple[str, ...] | None = None
    where_b: tuple[str, ...] | None = None
    of_a: Mapping[str, str | int] = field(default_factory=dict)
    of_b: Mapping[str, str | int] = field(default_factory=dict)
    counters: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    phases: Mapping[str, Sequence[float]] = field(default_factory=dict)
    controls: tuple[Mapping[str, Any], ...] = ()
    looks: int = 1

    def to_json(self) -> str:
        """Return the text kept in the verdict's row; without fields that have their defaults.

        Values that both sides have, which are most of it, are kept once, as ``of_both``.
        """
        defaults = asdict(VerdictEvidence())
        document = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        if common := dict(self.of_a.items() & self.of_b.items()):
            document[_BOTH_SIDES] = common
            for side in _SIDES:
                document[side] = {
                    name: value for name, value in document[side].items() if name not in common
                }
        return json.dumps(document, sort_keys=True, allow_nan=False, separators=(",", ":"))

    @staticmethod
    @lru_cache(maxsize=4096)
    def from_json(text: str) -> VerdictEvidence:
        """Parse the output of :meth:`to_json`; equal texts share one result."""
        document: dict[str, Any] = from_json(text)
        for name, value in document.items():
            if value.__class__ is list:
                document[name] = tuple(value)
        if common := document.pop(_BOTH_SIDES, None):
            for side in _SIDES:
                document[side] = {**common, **document.get(side, {})}
        values = {**_DEFAULTS, **document}
        if len(values) > len(_DEFAULTS):
            raise TypeError(f"unknown evidence: {sorted(values.keys() - _DEFAULTS.keys())}")
        evidence = object.__new__(VerdictEvidence)
        # The constructor of a frozen class takes almost as long as the parser.
        object.__setattr__(evidence, "__dict__", values)
        return evidence


#: Fields of the values of either side, and the key in JSON of those that both have.
_SIDES, _BOTH_SIDES = ("of_a", "of_b"), "of_both"
#: Default of each field. All evidence shares the mappings among them, so they must not be changed.
_DEFAULTS: Mapping[str, Any] = vars(VerdictEvidence())


#: Launches of a series after which a comparison may end.  Three are the fewest that a verdict on one
#: host needs; each further look doubles them, so that few looks share the error rate.
LOOKS = (3, 6, 12, 24, 48, 96)
#: Limit of the launches of a series unless the user sets one.
DEFAULT_MAX_LAUNCHES = 24
#: Verdicts that further launches may change.
_OPEN_VERDICTS = (Verdict.UNDECIDED, Verdict.NOT_ENOUGH)
#: Key of the plan in the request of a campaign.
PLAN_KEY = "until_decided"


@dataclass(frozen=True)
class SequentialPlan:
    """Numbers of launches of a series after which it is judged, and the limit of no effect.

    Each look is judged at the error rate divided by the number of looks.  By Bonferroni's inequality,
    the probability of a false claim at any of them is at most the whole rate. This holds for any reason
    to end the campaign and any dependence between the looks.
    """

    looks: tuple[int, ...]
    delta: float = DEFAULT_DELTA

    @classmethod
    def up_to(cls, max_launches: int, delta: float = DEFAULT_DELTA) -> SequentialPlan:
        """Make the plan with the looks of :data:`LOOKS` that a limit leaves.

        Raises:
            ValueError: a limit is out of range.
        """
        if not 0 < delta < 1:
            raise ValueError(f"--delta: must lie between 0 and 1, not {delta:g}")
        if not LOOKS[0] <= max_launches <= LOOKS[-1]:
            raise ValueError(
                f"--max-launches: must lie between {LOOKS[0]} and {LOOKS[-1]}, not {max_launches}"
            )
        return cls(tuple(look for look in LOOKS if look <= max_launches), delta)

    def describe(self) -> dict[str, Any]:
        """Return the plan as it is kept with the request of its campaign."""
        return asdict(self)


def is_open(verdict: str, low: float | None, high: float | None, delta: float) -> bool:
    """Return whether further launches could decide more about a series.

    Refused series stay refused, except those with too few launches.  ``different`` is open until its
    interval (ln) is no wider than ``delta``: the size is then known. Deciding whether it lies just within
    or just beyond the limit would take many more launches.
    """
    if verdict == Verdict.DIFFERENT and low is not None and high is not None:
        return high - low > delta
    return verdict in _OPEN_VERDICTS


def attach_controls(
    rows: Sequence[VerdictRow], controls: Iterable[ControlCheck]
) -> tuple[VerdictRow, ...]:
    """Add the controls to the evidence of the first row."""
    if not rows:
        return ()
    first, *following = rows
    documents = tuple(asdict(control) for control in controls)
    evidence = replace(VerdictEvidence.from_json(first.evidence), controls=documents)
    return (replace(first, evidence=evidence.to_json()), *following)


def attach_to_series(
    rows: Iterable[VerdictRow], evidence_name: str, by_series: Mapping[str, Mapping[str, Any]]
) -> tuple[VerdictRow, ...]:
    """Add what each series has, by its comparison key, to the evidence of its first row."""
    missing = dict(by_series)
    attached = []
    for row in rows:
        values = missing.pop(row.comparison_key, None) if row.scope in SERIES_SCOPES else None
        if values:
            addition: dict[str, Any] = {evidence_name: values}
            evidence = replace(VerdictEvidence.from_json(row.evidence), **addition)
            attached.append(replace(row, evidence=evidence.to_json()))
        else:
            attached.append(row)
    return tuple(attached)


def stored_controls(rows: Sequence[VerdictRow]) -> list[ControlCheck]:
    """Return the controls that :func:`attach_controls` added to a comparison's first row."""
    documents = VerdictEvidence.from_json(rows[0].evidence).controls if rows else ()
    return [ControlCheck(**document) for document in documents]
