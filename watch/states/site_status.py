"""Status of sites: evaluation of recorded results to recorded changes, and the use that follows.

What follows for the use of a site is a :class:`.SiteUses`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

from treehammer.analysis.status.failure_explanation import BAD_STATES, UNDECIDED, explain_period
from treehammer.analysis.status.site_uses import (
    WORST_FIRST,
    SiteState,
    SiteUses,
    SubjectUse,
    Usability,
)
from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.sql.core.evidence import FailureExplanation, StateEvidence
from treehammer.sql.core.subjects import (
    CENTRAL,
    DOOR,
    JUDGED_KINDS,
    STORAGE_SITE,
    SUBJECT_KINDS,
    split_door_label,
)
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow, RuleSetRow, StatusChangeRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.read import overview_queries
from treehammer.sql.read.failure_counts import Period, PeriodCounts
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_time
from treehammer.verticals import import_parts
from treehammer.watch.states.rule_judgements import (
    BuildEvidence,
    ChargedRun,
    ReplayWindow,
    RuleMemory,
    StateJudgement,
    charge_run,
    replay_rule,
)
from treehammer.watch.states.state_timeline import (
    DOWNTIME,
    OVERRIDE,
    Subject,
    SubjectInput,
    build_timeline,
    list_subjects,
)
from treehammer.watch.states.status_rules import OperationsStatusRule, StatusRules
from treehammer.watch.store.state_history import (
    RunOutcome,
    find_latest_rule_set,
    list_current_states,
    list_downtimes,
    list_outages,
    list_overrides,
    list_run_outcomes,
    list_state_changes,
    name_subject,
    record_evaluation,
)

#: Periods before a change of state whose results explain it. Shorter ones show new failures that the
#: good results of a day would hide.
STATE_PERIODS_US = (DAY_US, DAY_US // 4, DAY_US // 24)
#: Changes of states that one evaluation explains, the newest ones.
MAX_EXPLAINED = 100
#: Identity of a change; that of an announced end which was moved is another one.
_CHANGE_KEY = attrgetter(
    *("subject_kind", "site", "rule", "since_us", "state", "previous", "cause"),
    "evidence.until_us",
)


@dataclass(frozen=True)
class StatusUpdate:
    """Result of an evaluation: changes of sites' states that are new, and that it contradicts.

    Attributes:
        changes: new changes of states, in order of time; without those of single rules.
        superseded: earlier changes that late results contradict; without those of single rules.
        recorded: False if another evaluation was recorded at the same time, or a later one before.
    """

    changes: tuple[StatusChangeRow, ...]
    superseded: tuple[StatusChangeRow, ...]
    recorded: bool = True


def update_states(store: Store, now_us: int, rules: StatusRules) -> StatusUpdate:
    """Evaluate the states of all sites up to a time, and record their changes.

    The last ``reevaluate`` of the rules is replayed, so that results that arrived late, downtimes
    and overrides correct the history: changes that no longer follow are superseded. States from
    before the first use of these rules stay. Two evaluations at once record one result.

    Args:
        store: the database.
        now_us: the time, in microseconds since 1970 UTC.
        rules: the rules.
    """
    # After one by a clock that is ahead, no evaluation would follow until its time.
    with store.connection() as connection:
        now_us = min(now_us, read_clock(connection))
    before = find_latest_rule_set(store)
    if before is not None and now_us <= before.evaluated_us:
        return StatusUpdate((), (), recorded=False)
    # These rules are in use since then; earlier decisions remain.
    started_us = max(0, now_us - rules.reevaluate_us)
    if before is not None:
        is_same = before.version == rules.version
        started_us = before.started_us if is_same else before.evaluated_us
    from_us = max(started_us, now_us - rules.reevaluate_us)
    window = ReplayWindow(from_us, now_us, rules.step_us)
    later = list_state_changes(store, since_us=from_us + 1, rules=True, doors=True)
    recorded_changes = [row for row in later if row.since_us <= now_us]
    new, obsolete = _compare_changes(recorded_changes, _replay(store, rules, window))
    new = _add_explanations(store, new)
    rule_set = RuleSetRow(rules.version, rules.document, started_us, now_us)
    recorded = record_evaluation(
        store,
        before=before,
        rule_set=rule_set,
        superseded=[row.id for row in obsolete],
        changes=new,
    )
    if not recorded:
        return StatusUpdate((), (), recorded=False)
    return StatusUpdate(_leave_out_rules(new), _leave_out_rules(obsolete))


def _compare_changes(
    recorded_changes: Iterable[StatusChangeRow], replayed: Iterable[StatusChangeRow]
) -> tuple[list[StatusChangeRow], list[StatusChangeRow]]:
    """Return the changes that are new, and the recorded ones that no longer follow."""
    recorded = {_CHANGE_KEY(row): row for row in recorded_changes}
    expected = {_CHANGE_KEY(row): row for row in replayed}
    new = [row for key, row in expected.items() if key not in recorded]
    return new, [row for key, row in recorded.items() if key not in expected]


def _leave_out_rules(changes: Iterable[StatusChangeRow]) -> tuple[StatusChangeRow, ...]:
    return tuple(change for change in changes if not change.rule)


def _replay(
    store: ResultsReader, rules: StatusRules, window: ReplayWindow
) -> list[StatusChangeRow]:
    """Replay all rules of all subjects within a window, on one set of data."""
    states = list_current_states(store, at_us=window.from_us, rules=True, doors=True)
    data_us = window.from_us - rules.longest_memory_us
    downtimes = list_outages(store, data_us)
    overrides = list_overrides(store, ends_after_us=window.from_us)
    overrides = [override for override in overrides if override.made_us <= window.to_us]
    outcomes = list_run_outcomes(store, data_us, window.to_us)
    judged_doors = _list_judged_doors(outcomes, states)
    runs = charge_runs(outcomes, judged_doors, rules, downtimes)
    days = _judge_days(store, rules, window)
    rows: defaultdict[Subject, list[StatusChangeRow]] = defaultdict(list)
    for row in states:
        rows[Subject(row.subject_kind, row.site)].append(row)
    inputs: dict[Subject, SubjectInput] = {}
    for subject in _list_subjects(runs, days, rows, (*overrides, *downtimes)):
        data = runs.get(subject, ()), days.get(subject.site, {})
        inputs[subject] = _replay_subject(subject, *data, rows[subject], rules, window)
    central = {row.site: row for row in states if row.subject_kind == CENTRAL}
    timeline = build_timeline(inputs, downtimes, overrides, central, rules, window)
    return [
        *chain.from_iterable(subject_input.changes for subject_input in inputs.values()),
        *timeline,
    ]


def _list_subjects(
    runs: Iterable[Subject],
    days: Iterable[str],
    states: Iterable[Subject],
    exceptions: Iterable[OverrideRow | DowntimeRow],
) -> list[Subject]:
    """List the subjects that have results, a recorded state, an override or a downtime.

    Doors have no downtime: that of their storage excludes them.
    """
    subjects = {*runs, *(Subject(STORAGE_SITE, site) for site in days)}
    subjects |= {subject for subject in states if subject.kind in JUDGED_KINDS}
    return sorted(subjects.union(*map(list_subjects, exceptions)))


def _list_judged_doors(
    runs: Iterable[RunOutcome], states: Iterable[StatusChangeRow]
) -> frozenset[str]:
    """List the doors of storages with runs through several, or with a door that has a state.

    The state of a storage with one door says it all. A door keeps its states when the others get
    no jobs for a while.
    """
    doors = {label for run in runs for label in run.by_door}
    counts = Counter(split_door_label(label)[0] for label in doors)
    with_states = {split_door_label(row.site)[0] for row in states if row.subject_kind == DOOR}
    return frozenset(
        label
        for label in doors
        if counts[storage := split_door_label(label)[0]] > 1 or storage in with_states
    )


def charge_runs(
    runs: Iterable[RunOutcome],
    judged_doors: Collection[str],
    rules: StatusRules,
    downtimes: Sequence[DowntimeRow],
) -> dict[Subject, list[ChargedRun]]:
    """Charge each run to its site, its storage and its doors, unless these were in a downtime.

    Failures of a storage in a downtime are not charged to the jobs that read it, either.
    """
    charged_runs: defaultdict[Subject, list[ChargedRun]] = defaultdict(list)
    outages: defaultdict[Subject, list[DowntimeRow]] = defaultdict(list)
    for downtime in downtimes:
        for subject in list_subjects(downtime):
            outages[subject].append(downtime)

    def is_out(owner: Subject, time_us: int) -> bool:
        return any(row.starts_us <= time_us < row.ends_us for row in outages.get(owner, ()))

    for run in runs:
        has_storage = not is_out(Subject(STORAGE_SITE, run.storage_site), run.ended_us)
        for subject, owner, part in _list_charged_parts(run, judged_doors):
            if charge_run(part, subject.kind, rules) is None:
                continue
            of_subject = charged_runs[subject]  # It has a state even if all were in a downtime.
            charged = charge_run(part, subject.kind, rules, has_storage=has_storage)
            if charged is not None and not is_out(owner, run.ended_us):
                of_subject.append(charged)
    for of_subject in charged_runs.values():  # Those of doors are not in order.
        of_subject.sort(key=lambda charged: charged.run.ended_us)
    return charged_runs


def _list_charged_parts(
    run: RunOutcome, judged_doors: Collection[str]
) -> Iterator[tuple[Subject, Subject, RunOutcome]]:
    """Yield the site, the storage and the doors of a run with the part of it that counts.

    The second subject has the downtimes that hold: doors are down with their storage.
    """
    for kind, site in zip(SUBJECT_KINDS, (run.site, run.storage_site), strict=True):
        if site:
            yield Subject(kind, site), Subject(kind, site), run
    for label, part in run.by_door.items():
        if label in judged_doors:
            yield Subject(DOOR, label), Subject(STORAGE_SITE, run.storage_site), part


def _judge_days(
    store: ResultsReader, rules: StatusRules, window: ReplayWindow
) -> dict[str, dict[int, StateJudgement]]:
    """Judge the load tests of each storage on the days whose end is in the window."""
    rule = next(iter(rules.list_rules(OperationsStatusRule)), None)
    first_day = epoch_day_to_number(window.from_us // DAY_US)
    last_day = epoch_day_to_number(window.to_us // DAY_US)
    if rule is None or first_day is None or last_day is None:
        return {}
    judgements: defaultdict[str, dict[int, StateJudgement]] = defaultdict(dict)
    parts = import_parts("storage_days")
    judged = (part.judge_days(store, first_day, last_day, rule).items() for part in parts)
    for (site, day), storage_day in chain.from_iterable(judged):
        if site:
            evidence: BuildEvidence = partial(StateEvidence, day=day, counts=storage_day.counts)
            memory = RuleMemory(storage_day.status)
            judgements[site][day] = StateJudgement(
                storage_day.status, f"load tests: {storage_day}", evidence, memory
            )
    return dict(judgements)


def _replay_subject(
    subject: Subject,
    runs: Sequence[ChargedRun],
    days: Mapping[int, StateJudgement],
    rows: Sequence[StatusChangeRow],
    rules: StatusRules,
    window: ReplayWindow,
) -> SubjectInput:
    before = {row.rule: row for row in rows}
    overall = before.pop("", None)
    judging = {name: rule for name, rule in rules.rules.items() if subject.kind in rule.sites}
    changes: list[StatusChangeRow] = []
    for name, rule in judging.items():
        blank = StatusChangeRow("", subject.kind, subject.site, name, cause=name)
        changes += replay_rule(rule, runs, before.get(name, blank), window, days)
    for row in before.values():
        if row.rule not in judging and row.state != SiteState.UNKNOWN:
            changes.append(_retire_rule(row, rules, window))
    return SubjectInput(before, overall, changes)


def _retire_rule(
    before: StatusChangeRow, rules: StatusRules, window: ReplayWindow
) -> StatusChangeRow:
    """End the state by a rule that is no longer in use."""
    rule = rules.rules.get(before.rule)
    return replace(
        before,
        id="",
        state=SiteState.UNKNOWN.value,
        previous=before.state,
        since_us=window.ceil_step(window.from_us + 1),
        decided_us=window.to_us,
        rule_version=rule.version if rule else rules.version,
        reason=f"the rule {before.rule} is no longer in use",
        evidence=StateEvidence(),
    )


def _add_explanations(
    store: ResultsReader, changes: Sequence[StatusChangeRow]
) -> list[StatusChangeRow]:
    """Add explanations to the evidence of the newest bad states that rules decided."""
    counts = PeriodCounts(store)
    judged = [
        row
        for row in changes
        if row.subject_kind in SUBJECT_KINDS
        and row.rule_version
        and not row.rule
        and row.cause != OVERRIDE
        and row.state in BAD_STATES
    ]
    newest = sorted(judged, key=lambda row: row.since_us)[-MAX_EXPLAINED:]
    explained = {id(row): _add_explanation(store, row, counts) for row in newest}
    return [explained.get(id(row), row) for row in changes]


def _add_explanation(
    store: ResultsReader, row: StatusChangeRow, counts: PeriodCounts
) -> StatusChangeRow:
    is_storage = row.subject_kind == STORAGE_SITE
    by = overview_queries.STORAGE_SITE if is_storage else overview_queries.JOB_SITE
    explanation: FailureExplanation | None = None
    for length_us in STATE_PERIODS_US:
        period = Period(row.since_us - length_us, row.since_us)
        shorter = explain_period(store, row.site, period, by=by, counts=counts)
        is_certain = shorter is not None and shorter.culprit not in UNDECIDED
        explanation = shorter if is_certain else explanation or shorter
        if is_certain:
            break
    if explanation is None:
        return row
    return replace(row, evidence=replace(row.evidence, explanation=explanation))


def list_uses(store: ResultsReader) -> SiteUses:
    """List the uses of all sites and doors by the states as last evaluated."""
    return SiteUses(
        {
            (row.subject_kind, row.site): use_by_state(row)
            for row in list_current_states(store, doors=True)
            if row.subject_kind in JUDGED_KINDS
        }
    )


def index_by_site(states: Iterable[StatusChangeRow], kind: str) -> dict[str, StatusChangeRow]:
    """Index the states of one kind by site."""
    return {row.site: row for row in states if row.subject_kind == kind}


def find_site_states(states: Iterable[StatusChangeRow]) -> dict[str, StatusChangeRow]:
    """Find the state of each site: the worse one of its jobs and its storage, of equal ones the earlier.

    Lists of sites, the digest, alarms and monitoring count sites by it.
    """
    by_site: dict[str, StatusChangeRow] = {}
    for row in states:
        if row.subject_kind in SUBJECT_KINDS:
            by_site[row.site] = min(by_site.get(row.site, row), row, key=order_state)
    return by_site


def order_state(row: StatusChangeRow) -> tuple[int, int]:
    """Return a sort key: the worst state first, of equal ones the earliest."""
    return WORST_FIRST.index(SiteState(row.state)), row.since_us


def use_by_state(row: StatusChangeRow) -> SubjectUse:
    """Derive the use of a subject from its state."""
    state = SiteState(row.state)
    return SubjectUse(
        kind=row.subject_kind,
        site=row.site,
        usability=_judge_use(state, row.cause, row.site),
        state=state,
        cause=row.cause,
        reason=row.evidence.why or row.reason,
        since_us=row.since_us,
        until_us=row.evidence.until_us,
        who=row.evidence.who or row.cause,
    )


def _judge_use(state: SiteState, cause: str, site: str) -> Usability:
    """Decide on the use of a site. The rules do not exclude the machine of a test's developer."""
    if state not in (SiteState.CRITICAL, SiteState.DOWNTIME):
        return Usability.USABLE
    if cause in (DOWNTIME, OVERRIDE):
        return Usability.EXCLUDED
    is_local = split_door_label(site)[0] == LOCAL_BATCH
    return Usability.USABLE if is_local else Usability.PROBE_ONLY


def find_probe_time(restrictions: Collection[SubjectUse], every_us: int, now_us: int) -> int | None:
    """Return the time of a site's latest due probe; None before the first, or if none is allowed."""
    if not restrictions or any(use.usability is Usability.EXCLUDED for use in restrictions):
        return None
    since_us = max(use.since_us for use in restrictions)
    periods = (now_us - since_us) // every_us
    return since_us + periods * every_us if periods > 0 else None


def refresh_uses(
    store: Store, rules: StatusRules, now_us: int, *, always: bool = False
) -> SiteUses:
    """Evaluate the states of sites if a step has passed since the last time, and list the uses.

    Nothing is evaluated, and nothing excluded, where nobody ever evaluated a state and no downtime
    was announced.

    Args:
        store: the database.
        rules: the rules.
        now_us: the time, in microseconds since 1970 UTC.
        always: evaluate also for the first time.
    """
    latest = find_latest_rule_set(store)
    if latest is None and not (always or list_downtimes(store, ends_after_us=now_us)):
        return SiteUses()
    # Results of another step count by now.
    if latest is None or latest.evaluated_us // rules.step_us < now_us // rules.step_us:
        update_states(store, now_us, rules)
    return list_uses(store)


def flatten_change(row: StatusChangeRow) -> dict[str, Any]:
    """Return a change of a state as a row for tables and programs."""
    use: dict[str, Any] = {"use": None, "until": None, "who": row.cause}
    if row.subject_kind != CENTRAL:
        permitted = use_by_state(row)
        until_us = permitted.until_us
        until = None if until_us is None else format_time(until_us)
        use = {"use": permitted.usability.value, "until": until, "who": permitted.who}
    return {
        "since": format_time(row.since_us),
        "site": "" if row.subject_kind == CENTRAL else row.site,
        "of": name_subject(row),
        "previous": row.previous,
        "state": row.state,
        "cause": row.cause,
        "reason": row.reason + (" (superseded)" if row.superseded_us else ""),
        **use,
        "rule_version": row.rule_version,
        "decided": format_time(row.decided_us),
        "superseded": format_time(row.superseded_us) if row.superseded_us else None,
        "evidence": row.evidence.to_document(),
        "id": row.id,
    }
