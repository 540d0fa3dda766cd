"""Row classes of the watch: states of sites, patrol, changes and alarms.

Units and unknown values are as in :mod:`treehammer.sql.core.rows`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treehammer.sql.core.evidence import ChangeEvidence, StateEvidence
from treehammer.sql.core.rows import Identity, LongText, Required, StoredRow, Text, Word


@dataclass(frozen=True)
class StatusChangeRow(StoredRow):
    """Change of a site's state, with its evidence. It may be superseded, but is never removed.

    Attributes:
        id: identity.
        subject_kind: ``site`` (of jobs), ``storage_site``, ``door``, or ``central`` for the mass event
            of the subjects of the kind that ``site`` names.
        site: name of the site; of a door ``STORAGE:DOOR``.
        rule: rule whose own state changed; '' for the state by all rules, downtimes and overrides.
        state: new state.
        previous: state before.
        since_us: time of the change.
        decided_us: time of the evaluation that found it.
        cause: deciding rule, or ``downtime``, ``override`` or ``central``.
        rule_version: content hash of the deciding rule; '' for other causes.
        reason: a sentence for people.
        evidence: counts, and identities of campaigns, jobs and measurements.
        superseded_us: time at which late results contradicted the change; None if it holds.
    """

    id: Identity
    subject_kind: Required[Word]
    site: Text
    rule: Word = ""
    state: Required[Word] = "unknown"
    previous: Required[Word] = "unknown"
    since_us: int = 0
    decided_us: int = 0
    cause: Required[Word] = ""
    rule_version: Word = ""
    reason: Text = ""
    evidence: StateEvidence = field(default=StateEvidence(), hash=False)
    superseded_us: int | None = None


@dataclass(frozen=True)
class RuleSetRow(StoredRow):
    """Set of status rules by its content hash, with the times of its use."""

    version: Word
    document: LongText
    started_us: int
    evaluated_us: int


@dataclass(frozen=True)
class DowntimeRow(StoredRow):
    """Announced downtime of a site; ``subject_kind`` is '' if jobs and storage are down.

    ``source`` names the document, and ``withdrawn_us`` is the time since which it lacks the downtime.
    """

    id: Identity
    source: Text
    site: Text
    subject_kind: Word
    starts_us: int
    ends_us: int
    severity: Required[Word]
    description: Text
    url: Text
    imported_us: int
    withdrawn_us: int | None = None


@dataclass(frozen=True)
class OverrideRow(StoredRow):
    """State that a person set for a site or door until a time.

    ``subject_kind`` is '' for jobs and storage; ``site`` is ``STORAGE:DOOR`` for a door.
    """

    id: Identity
    site: Text
    subject_kind: Word
    state: Required[Word]
    who: Required[Text]
    why: Required[Text]
    made_us: int
    until_us: int
    ended_us: int | None = None
    ended_by: Text = ""


@dataclass(frozen=True)
class PatrolLeaseRow(StoredRow):
    """Lease of the leader among patrols; ``epoch`` grows with every change of the holder."""

    name: Word
    holder: Required[Text]
    epoch: int
    acquired_us: int
    expires_us: int


@dataclass(frozen=True)
class PatrolEntryRow(StoredRow):
    """Entry of a patrol file as the leader last read it; ``next_us`` is its next start, if known."""

    name: Identity
    line: int
    test: Text
    follows: Text
    sites: Text
    every_s: int | None
    in_flight: int
    next_us: int | None
    note: LongText
    checked_us: int


@dataclass(frozen=True)
class PatrolStartRow(StoredRow):
    """Start of a campaign on one occasion: a time, a commit, a tag or a release.

    The row is written before anything is submitted.

    Attributes:
        entry: name of the entry.
        occasion: unique within the entry.
        campaign_id: identity of the campaign; '' for what existed before the patrol followed it.
        state: a state of :mod:`treehammer.watch.store.patrol_starts`.
        due_us: time at which it was to start.
        claimed_us: time of the claim.
        finished_us: time at which its jobs had ended and its cost was settled.
        epoch: epoch of the lease under which it was claimed.
        holder: patrol that submits it and collects its results.
        request: the request as JSON, enough to repeat the submission.
        message: for people.
    """

    entry: Identity
    occasion: Identity
    campaign_id: Identity
    state: Required[Word]
    due_us: int
    claimed_us: int
    finished_us: int | None
    epoch: int
    holder: Required[Text]
    request: LongText
    message: LongText


@dataclass(frozen=True)
class PatrolChargeRow(StoredRow):
    """Cost of a campaign at a site: reserved with its start, settled at its end.

    ``day`` counts UTC days since 1970.
    """

    campaign_id: Identity
    site: Identity
    day: int
    reserved_cpu_s: float
    reserved_bytes: int
    used_cpu_s: float | None = None
    used_bytes: int | None = None


@dataclass(frozen=True)
class PatrolSiteRow(StoredRow):
    """Daily limits of a site; None for no limit."""

    site: Identity
    cpu_limit_s: float | None
    bytes_limit: int | None


@dataclass(frozen=True)
class WatchedSeriesRow(StoredRow):
    """Series that is watched by day.

    Attributes:
        id: hash of the other values.
        kind: a value of :class:`treehammer.watch.changes.daily_series.SeriesKind`.
        metric: the metric.
        test_name: name of the test.
        work: comparison key over releases: equal for the same work at the same door.
        variant_label: display name of the variant.
        site: site of the jobs.
        storage_site: site of the door.
        door: name of the door.
        release: the release; '' for levels of the control.
        control: the pinned control release.
        host: host of a level; '' for ratios.
    """

    id: Identity
    kind: Required[Word]
    metric: Required[Word]
    test_name: Text
    work: Text
    variant_label: Text
    site: Text
    storage_site: Text
    door: Text
    release: Text
    control: Text
    host: Text


@dataclass(frozen=True)
class WatchedDayRow(StoredRow):
    """Mean of a watched series over the jobs of a day (UTC, YYYYMMDD), in ln.

    ``squares`` is the sum of squared deviations of the jobs; ``context`` is a JSON object with the
    usual value of each aspect.
    """

    series_id: Identity
    day: int
    value: float
    squares: float
    jobs: int
    context: LongText


@dataclass(frozen=True)
class ChangePointRow(StoredRow):
    """Change found in watched series.

    Attributes:
        id: identity, kept while the change is found again.
        found_us: time of the first finding in its state.
        updated_us: time of the last one.
        day: first day (UTC, YYYYMMDD) after a step, or of a drift.
        state: ``provisional`` or ``confirmed``.
        kind: kind of the series.
        metric: the metric.
        test_name: name of the test.
        control: the pinned control release.
        attribution: kind of its origin: site, release, storage, central or unknown.
        subject: name of the origin; '' for central and unknown.
        effect: size in ln; positive is slower.
        low: lower end of the 95 % interval.
        high: upper end.
        p_value: of no change.
        days_before: measured days before it that were used.
        days_after: measured days from it on that were used.
        seconded: a second detector finds it as well.
        cause: context that changed with it, in words.
        evidence: places of all changed series, and their own sizes.
        until_day: last day of a drift; None for a step.
    """

    id: Identity
    found_us: int
    updated_us: int
    day: int
    state: Required[Word]
    kind: Required[Word]
    metric: Required[Word]
    test_name: Text
    control: Text
    attribution: Required[Word]
    subject: Text
    effect: float
    low: float
    high: float
    p_value: float
    days_before: int
    days_after: int
    seconded: bool
    cause: LongText
    evidence: ChangeEvidence
    until_day: int | None = None


@dataclass(frozen=True)
class AlarmMessage(StoredRow):
    """Message about an event to one recipient, or the event itself, which has no channel.

    Attributes:
        id: hash of event, channel and recipient; of the event itself its identity.
        event_id: identity of the event.
        kind: ``state``, ``regression`` or ``change point``.
        subject_kind: ``site``, ``release``, ``service`` or ``central``.
        subject: name of the site, release or service.
        state: state of the subject after the event.
        severity: ``warning`` or ``critical``: the worse one of the states before and after; ``none``
            for the first state of a subject that is not in trouble.
        happened_us: time of the event.
        recorded_us: time at which it was recorded; of a subject's states a later one is greater.
        title: one line.
        text: further lines.
        evidence: path of the page with the evidence.
        channel: ``mail`` or ``webhook``; '' for the event itself.
        recipient: mail address; '' for the only one of the channel.
        delivery: ``waiting``, ``sent`` or ``given up``; '' for the event itself.
        attempts: attempts to send it.
        due_us: time of the next attempt, later than an attempt that still runs; of the last attempt
            once the delivery is over.
        error: of the last attempt; '' for none.
    """

    id: Identity
    event_id: Required[Identity]
    kind: Required[Word]
    subject_kind: Required[Word]
    subject: Text
    state: Required[Word]
    severity: Required[Word]
    happened_us: int
    recorded_us: int
    title: Required[Text]
    text: LongText
    evidence: Text
    channel: Word = ""
    recipient: Text = ""
    delivery: Word = ""
    attempts: int = 0
    due_us: int = 0
    error: Text = ""

    def to_event_document(self) -> dict[str, str | int]:
        """Return the event as values of JSON."""
        names = ("kind", "subject_kind", "subject", "state", "severity", "happened_us")
        values = {name: getattr(self, name) for name in (*names, "title", "text", "evidence")}
        return {"id": self.event_id, **values}


@dataclass(frozen=True)
class ReleaseCheck(StoredRow):
    """Comparison of release ``b`` with ``a`` in one campaign, and its reruns.

    Attributes:
        id: hash of campaign, releases and server.
        campaign_id: the campaign that was compared first.
        test_name: its test.
        a: the base; '' where the campaign compares no releases.
        b: the other release of ROOT, or version of the server.
        state: a value of :class:`treehammer.watch.alarms.alarm_overview.CheckState`.
        comparison_id: the stored comparison that decided last.
        compared: variants and metrics with a decided verdict.
        slower: of them the slower ones.
        effect: the largest of their effects, in ln.
        text: the slower variants, one a line.
        reruns: number of reruns that were started.
        rerun_id: campaign of the last rerun; '' before the first.
        checked_us: time of the first comparison.
        changed_us: time of the last change of the state.
        server: the server that changed its version since an earlier campaign, such as
            ``SITE_A:cache``, or ``SITE_A:cache origin``; '' for releases of ROOT.
    """

    id: Identity
    campaign_id: Required[Identity]
    test_name: Text
    a: Text
    b: Text
    state: Required[Word]
    comparison_id: Identity = ""
    compared: int = 0
    slower: int = 0
    effect: float | None = None
    text: LongText = ""
    reruns: int = 0
    rerun_id: Identity = ""
    checked_us: int = 0
    changed_us: int = 0
    server: Text = ""
