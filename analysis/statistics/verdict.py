"""Verdicts of a comparison, and when further launches can change them.

Controls (A/A launches) are part of the evidence. A sequential plan ends a campaign as soon as its
question is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treehammer.sql.core.campaign_plan import SequentialPlan
    from treehammer.sql.core.evidence import ControlCheck
    from treehammer.sql.core.rows import VerdictRow

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
#: Probability at which a search for a change ends.
DEFAULT_CERTAINTY = 0.95
#: Larger campaigns are not worth naming.
MAX_JOBS_NAMED = 10_000
#: Raised when a rule changes: a verdict is only as good as the rule that gave it.
RULE_VERSION = 8


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
    CONTROL_OFF = "control is off"
    ONLY_IN_A = "only in A"
    ONLY_IN_B = "only in B"
    FAILED = "failed"

    @property
    def is_statistical(self) -> bool:
        """Whether the statistical rule was applied, rather than refused."""
        return self in STATISTICAL_VERDICTS

    @property
    def is_decided(self) -> bool:
        """Whether it answers if an effect is relevant."""
        return self in DECIDED_VERDICTS


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
#: Verdicts that answer whether an effect is relevant.
DECIDED_VERDICTS = (*CERTAIN_VERDICTS, Verdict.SAME)
#: Verdicts that a larger campaign can change.
OPEN_VERDICTS = (Verdict.DIFFERENT, Verdict.UNDECIDED)
#: Verdicts on work that one side did not read, which counts leave out.
ABSENT_VERDICTS = (Verdict.ONLY_IN_A, Verdict.ONLY_IN_B)
#: Verdicts that say one side has nothing to compare.
ONE_SIDED_VERDICTS = (*ABSENT_VERDICTS, Verdict.FAILED)
#: Verdicts that say both sides cannot be compared at all.
INCOMPARABLE_VERDICTS = (*ONE_SIDED_VERDICTS, Verdict.BUILD_DIFFERS, Verdict.VALUES_DIFFER)


#: Launches of a series after which a comparison may end.  The interval of five is half as wide as that
#: of three, the fewest that a verdict on one host needs, so that most comparisons end at the first look;
#: each further look doubles them, so that few looks share the error rate.
LOOKS = (5, 10, 20, 40, 80)
#: Two jobs of such a campaign hold five launches and take equally long side by side: one holds two
#: launches and a control, the other three launches.
SEQUENTIAL_JOBS, SEQUENTIAL_LAUNCHES = 2, 5
#: Share of the error rate that the first of several looks has; the others share the rest equally.  Most
#: comparisons end at the first look, whose interval is then 1.3 times narrower than with equal shares.
FIRST_LOOK_SHARE = 0.6
#: Limit of the launches of a series unless the user sets one.
DEFAULT_MAX_LAUNCHES = 40
#: Verdicts that further launches may change.
_OPEN_VERDICTS = (Verdict.UNDECIDED, Verdict.NOT_ENOUGH, Verdict.CONTROL_OFF)


def plan_looks(max_launches: int, delta: float = DEFAULT_DELTA) -> SequentialPlan:
    """Make the sequential plan with the looks of :data:`LOOKS` that a limit leaves.

    Raises:
        ValueError: a limit is out of range.
    """
    if not 0 < delta < 1:
        raise ValueError(f"--delta: must lie between 0 and 1, not {delta:g}")
    if not LOOKS[0] <= max_launches <= LOOKS[-1]:
        raise ValueError(
            f"--max-launches: must lie between {LOOKS[0]} and {LOOKS[-1]}, not {max_launches}"
        )
    # Imported here: commands name constants of this module, and their help loads no pydantic.
    from treehammer.sql.core.campaign_plan import SequentialPlan

    return SequentialPlan(looks=tuple(look for look in LOOKS if look <= max_launches), delta=delta)


def share_error_rate(looks: Sequence[int], repeats: int) -> float:
    """Return the share of the error rate that the last look at a campaign has.

    Args:
        looks: numbers of launches of each series at all looks.
        repeats: jobs of each series that the campaign started, whether they succeeded or not: the plan
            decides which look it is, not the data.
    """
    if len(looks) < 2:
        return 1.0
    is_first = repeats * SEQUENTIAL_LAUNCHES <= looks[0] * SEQUENTIAL_JOBS
    return FIRST_LOOK_SHARE if is_first else (1 - FIRST_LOOK_SHARE) / (len(looks) - 1)


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
    evidence = replace(first.evidence, controls=tuple(controls))
    return (replace(first, evidence=evidence), *following)


def attach_to_series(
    rows: Iterable[VerdictRow], evidence_name: str, by_series: Mapping[str, Mapping[str, Any]]
) -> tuple[VerdictRow, ...]:
    """Add what each series has, by its comparison key, to the evidence of its first row."""
    missing = dict(by_series)
    attached = []
    for row in rows:
        values = missing.pop(row.comparison_key, None) if row.scope in SERIES_SCOPES else None
        if values:
            addition: dict[str, Any] = {evidence_name: dict(sorted(values.items()))}
            attached.append(replace(row, evidence=replace(row.evidence, **addition)))
        else:
            attached.append(row)
    return tuple(attached)
