"""Evidence of verdicts, states of sites and changes: the documents of their columns.

Columns with evidence hold JSON. Rows hold these classes, which the type of the column reads and writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

#: Controls whose mean abs(ln(B/A)) is at most this are good, even if their interval excludes 0.
MAX_CONTROL_EFFECT = 0.01

#: Values of documents that contain others.
_NESTED = (list, dict)


class Evidence:
    """Base of the documents, which are frozen dataclasses.

    A document holds the fields that differ from their defaults.
    """

    #: Class of the values of fields that hold other documents, or lists of them.
    nested: ClassVar[Mapping[str, type[Any]]] = {}

    def to_document(self) -> dict[str, Any]:
        """Return the values of JSON."""
        defaults = vars(type(self)())
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {name: value for name, value in values.items() if value != defaults[name]}

    def to_json(self) -> str:
        """Return the text of the column."""
        return json.dumps(self.to_document(), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_document` returned.

        Raises:
            TypeError: the document has another key.
        """
        return cls(**cls._read_values(document))

    @classmethod
    def _read_values(cls, document: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: _read_value(cls.nested.get(name), value) if isinstance(value, _NESTED) else value
            for name, value in document.items()
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of the column."""
        return cls.from_document(json.loads(text))


def _read_value(kind: type[Any] | None, value: Any) -> Any:
    """Read a field: lists become tuples, and documents of a class its instances."""
    # A comparison has thousands of verdicts: most values are neither, and need no call.
    if isinstance(value, list):
        return tuple(
            [_read_value(kind, item) if isinstance(item, _NESTED) else item for item in value]
        )
    if isinstance(value, dict):
        values = {
            name: _read_value(None, item) if isinstance(item, _NESTED) else item
            for name, item in value.items()
        }
        return kind(**values) if kind else values
    return value


@dataclass(frozen=True)
class ControlCheck:
    """Controls of one metric: mean and standard deviation of ln(B/A) over their launches.

    ``base`` is the value of the compared axis that is compared with itself, '' for several values.
    ``sd`` is None for a single launch, the 95 % interval also for launches without spread.
    In ``sharing`` of the launches, programs ran from physical pages that all launches share.
    """

    metric: str
    base: str
    launches: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None
    sharing: int = 0

    @property
    def is_off(self) -> bool:
        """Whether the two equal halves differ: beyond doubt, and by more than a bound."""
        if self.low is None or self.high is None or abs(self.mean) <= MAX_CONTROL_EFFECT:
            return False
        return self.low > 0 or self.high < 0

    @property
    def sum_of_squares(self) -> float:
        """Sum of the squares of ln(B/A), which is 0 for equal halves."""
        return self.launches * self.mean**2 + (self.launches - 1) * (self.sd or 0.0) ** 2

    @property
    def is_in_order(self) -> bool:
        """Whether several launches differ by less than the bound on average."""
        return self.launches > 1 and abs(self.mean) <= MAX_CONTROL_EFFECT


@dataclass(frozen=True)
class VerdictEvidence(Evidence):
    """Evidence for a verdict.

    Attributes:
        why: the reason in words, where it is not the numbers alone.
        remedy: the suggested action.
        test: the statistical test, '' where none was made.
        unpaired: whether separate jobs were compared, for want of jobs that hold both sides.
        a_value, b_value: the metric on either side as measured, in its unit: means over jobs, each
            with the mean of its executions. Their ratio need not be the effect.
        jobs_a, jobs_b: jobs on either side (equal for pairs).
        counted: ``start`` where they, like those of the row, are common starts of several jobs.
        p, p_adjusted: of 'no effect', alone and within the family.
        level: error rate of the row's interval, the one at which its claim was judged; 0.05 where
            it stands outside every family.
        unit, better: unit of the metric, and whether ``lower`` or ``higher`` values are better.
        work: what times are per: ``event``, or ``run`` of a command.
        delta: effects within ±delta (in ln) count as none.
        cpu_s: CPU seconds of a job's loops on the side with fewer, over all passes; median.
        launches: launches that are the units of a host's verdict, in paired mode; 0 where jobs are.
        same_data: result of comparing the value checksums.
        build: other differences between the builds.
        bundled: libraries that changed with the release because ROOT brings them along.
        repackaged: compilers that differ in the distributor's package alone.
        unknown: build facts that one side did not record.
        nodes: facts in which the nodes of both sides differ.
        servers_a, servers_b: versions that the storage servers reported to either side.
        left_out: executions that were not used, by reason.
        sites: sites that were pooled, and tau, the spread between them (ln).
        shared_hosts: hosts that measured for several of these sites, with the sites.
        prediction: 95 % interval of the effect measured at one more site; from four sites on.
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
        look_share: share of the error rate that the last look had.
        scatter: standard deviations (ln) of equal launches and of these, if these scatter more.
        controls: A/A launches of the compared jobs; kept with the comparison's first row.

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
    counted: str = "job"
    p: float | None = None
    p_adjusted: float | None = None
    level: float | None = None
    unit: str = "s"
    better: str = "lower"
    work: str = "event"
    delta: float | None = None
    cpu_s: float | None = None
    launches: int = 0
    same_data: str = ""
    build: tuple[str, ...] = ()
    bundled: tuple[str, ...] = ()
    repackaged: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
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
    controls: tuple[ControlCheck, ...] = ()
    looks: int = 1
    look_share: float = 1.0
    scatter: tuple[float, ...] = ()

    nested = {"controls": ControlCheck}

    def to_document(self) -> dict[str, Any]:
        """Return the values of JSON; those that both sides have, which are most, once as ``of_both``."""
        document = super().to_document()
        if common := dict(self.of_a.items() & self.of_b.items()):
            document["of_both"] = common
            for side in ("of_a", "of_b"):
                values = document[side].items()
                document[side] = {name: value for name, value in values if name not in common}
        return document

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_document` returned."""
        values = dict(document)
        common = values.pop("of_both", {})
        # Values of either side are texts and numbers, which need no reading.
        sides = {side: {**common, **values.pop(side, {})} for side in ("of_a", "of_b")}
        return cls(**{**cls._read_values(values), **sides})


@dataclass(frozen=True)
class RuleMemoryEvidence:
    """Memory of a rule after a change: the tests of a recovery, and the time of the last one."""

    tests: tuple[str, ...] = ()
    recovered_us: int | None = None


@dataclass(frozen=True)
class FailureExplanation:
    """Origin of the trouble of a site, storage or job.

    Attributes:
        culprit: a value of :class:`treehammer.analysis.status.failure_attribution.Culprit`.
        sentence: counts, origin and since when.
        action: the cause of most failures, and the remedy.
        tests: affected tests.
    """

    culprit: str
    sentence: str
    action: str
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.sentence}. {self.action}".strip()


@dataclass(frozen=True)
class StateEvidence(Evidence):
    """Evidence for a change of a site's state; None where a value does not apply.

    Attributes:
        rules: state by each rule.
        day: day (UTC, YYYYMMDD) of the load tests.
        counts: numbers of measurements or operations.
        tests: numbers of runs that succeeded and failed, by test.
        ratio: median of the wall times per event, relative to the reference.
        series: number of series that were compared.
        campaigns, jobs, measurements: identities of results, the newest first.
        failures: numbers of failures by class, the most frequent first.
        override, downtime: identity of the override or downtime that decided.
        source, url: document of the downtime.
        until_us: announced end.
        who, why: author and reason of an override; author of a downtime.
        sites: sites of a central event.
        judged: number of sites that have a state at its beginning.
        memory: memory of the rule, kept with its own changes.
        explanation: origin of the failures.
    """

    rules: Mapping[str, str] | None = None
    day: int | None = None
    counts: Mapping[str, int] | None = None
    tests: Mapping[str, Mapping[str, int]] | None = None
    ratio: float | None = None
    series: int | None = None
    campaigns: tuple[str, ...] | None = None
    jobs: tuple[str, ...] | None = None
    measurements: tuple[str, ...] | None = None
    failures: Mapping[str, int] | None = None
    override: str | None = None
    downtime: str | None = None
    source: str | None = None
    url: str | None = None
    until_us: int | None = None
    who: str | None = None
    why: str | None = None
    sites: tuple[str, ...] | None = None
    judged: int | None = None
    memory: RuleMemoryEvidence | None = None
    explanation: FailureExplanation | None = None

    nested = {"memory": RuleMemoryEvidence, "explanation": FailureExplanation}


@dataclass(frozen=True)
class ChangedSeries:
    """Series with a change.

    Attributes:
        site, storage_site, door: its place.
        release: the release; '' for levels of the control.
        variant: display name of the variant.
        nodes_by: property by which most nodes of a level were recognized; None for ratios.
        effect: its own size in ln; None without a step of its own.
        error: standard error of the size.
    """

    site: str
    storage_site: str
    door: str
    release: str = ""
    variant: str = ""
    nodes_by: str | None = None
    effect: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class ChangeEvidence(Evidence):
    """Evidence for a change point: the series that changed, the largest change first."""

    series: tuple[ChangedSeries, ...] = ()

    def to_document(self) -> Any:
        """Return the list of the series."""
        return [asdict(series) for series in self.series]

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read what :meth:`to_document` returned."""
        return cls(tuple(ChangedSeries(**series) for series in document))
