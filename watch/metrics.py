"""States, permitted use and regressions as metrics of ``/metrics``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from treehammer.analysis.status.site_uses import SiteState, Usability
from treehammer.sql.core import subjects
from treehammer.sql.core.subjects import KIND_WORDS, locate_subject
from treehammer.sql.write.store import Store
from treehammer.text_formatting import make_single_line
from treehammer.watch.alarms import alarm_overview
from treehammer.watch.alarms.alarm_overview import list_regressions
from treehammer.watch.alarms.alarm_watch import list_slowdowns
from treehammer.watch.alarms.subject_state import AlarmKind, AlarmLevel
from treehammer.watch.states.site_status import list_uses
from treehammer.watch.store import alarms, state_history
from treehammer.web.api.prometheus_metrics import Families, Sample

FAMILIES: Families = {
    "site_status": ("1 for the state that the site is in.", ["site", "status"]),
    "state_code": (
        "State of a site, its jobs or storage, a release, a central event or the service: "
        "0 OK or downtime, 1 warning, 2 critical, 3 unknown.",
        ["kind", "name"],
    ),
    "in_downtime": ("1 during an announced downtime of the site.", ["kind", "name"]),
    "state_excused": (
        "1 during a downtime of the site or a central event, when its state alarms nobody.",
        ["kind", "name"],
    ),
    "state_since_seconds": (
        "Time since which the subject is in its state, in seconds since 1970; absent if unknown.",
        ["kind", "name"],
    ),
    "state_info": (
        "1 for the reason of a state that is not OK, and the action that helps; for mail.",
        ["kind", "name", "reason", "action"],
    ),
    "state_figure": (
        "Figures that states depend on, in their unit.",
        ["kind", "name", "figure", "unit"],
    ),
    "site_use": (
        "1 for what may be sent to the jobs, the storage or a door of a site: usable, probe only, "
        "excluded.",
        ["site", "of", "door", "use"],
    ),
    "regression_ratio": (
        "Relative change of a metric with release b of ROOT, or of a server, against a, of the "
        "variant with the largest: 0.08 is 8 % more. States: confirmed by a rerun, rerunning, "
        "suspected or undecided.",
        ["test", "a", "b", "metric", "state", "comparison", "server"],
    ),
    "change_ratio": (
        "Relative change of a metric at a confirmed change point of the last week to the slower.",
        ["test", "metric", "attribution", "subject", "change"],
    ),
}


def list_samples(store: Store, now_us: int) -> Iterator[Sample]:
    """List the samples of states, uses and regressions."""
    yield from _list_states(store, now_us)
    for row in state_history.list_current_states(store):
        if row.subject_kind != subjects.CENTRAL:
            subject = [KIND_WORDS[row.subject_kind], row.site]
            yield "state_code", subject, AlarmLevel(row.state.upper()).code
            yield "state_since_seconds", subject, row.since_us / 1e6
    for (kind, label), use in list_uses(store).by_subject.items():
        site, door = locate_subject(kind, label)
        for usability in Usability:
            labels = [site, KIND_WORDS[kind], door, usability.value]
            yield "site_use", labels, float(use.usability is usability)
    yield from _list_regressions(store, now_us)


def _list_states(store: Store, now_us: int) -> Iterator[Sample]:
    """List the states that ``treehammer check`` prints."""
    for alarm_state in alarm_overview.assess_all(store, now_us):
        subject = [alarm_state.kind.value, alarm_state.name]
        yield "state_code", subject, alarm_state.level.code
        if alarm_state.level is not AlarmLevel.OK:
            reason = "; ".join(filter(None, (alarm_state.summary, alarm_state.origin)))
            texts = [make_single_line(text) for text in (reason, alarm_state.action)]
            yield "state_info", [*subject, *map(alarms.cut_text, texts)], 1
        if alarm_state.kind is AlarmKind.SITE:
            yield "in_downtime", subject, float(alarm_state.level is AlarmLevel.DOWNTIME)
            yield "state_excused", subject, float(alarm_state.is_excused)
            for state in SiteState:
                is_current = alarm_state.level == state.value.upper()
                yield "site_status", [alarm_state.name, state.value], float(is_current)
        if alarm_state.since_us is not None:
            yield "state_since_seconds", subject, alarm_state.since_us / 1e6
        for figure in alarm_state.figures:
            if figure.value is not None:
                yield "state_figure", [*subject, figure.name, figure.unit], figure.value


def _list_regressions(store: Store, now_us: int) -> Iterator[Sample]:
    """List the regressions of releases, and the change points that are news."""
    for check, effects in list_regressions(store):
        for metric, effect in effects.items():
            names = [check.test_name, check.a, check.b, metric, check.state, check.comparison_id]
            yield "regression_ratio", [*names, check.server], math.expm1(effect)
    for change in list_slowdowns(alarms.load_change_points(store), now_us):
        labels = [change.test_name, change.metric, change.attribution, change.subject, change.id]
        yield "change_ratio", labels, math.expm1(change.effect)
