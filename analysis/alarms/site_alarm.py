"""States of sites and of central events for monitoring, as the status rules decided them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from urllib.parse import quote

from treehammer.analysis.alarms.alarm_levels import (
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
)
from treehammer.analysis.status.failure_explanation import FailureExplanation
from treehammer.analysis.status.rule_judgements import charge_run
from treehammer.analysis.status.site_state import WORST_FIRST, SiteState
from treehammer.analysis.status.state_timeline import CENTRAL_CAUSE
from treehammer.analysis.status.status_rules import ShareRule, duration_us
from treehammer.analysis.status.usability import use_by_state
from treehammer.durations import SECOND_US
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import overview_queries
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch import state_history
from treehammer.sql.watch.run_outcomes import list_run_outcomes
from treehammer.sql.watch.state_history import CENTRAL, SITE, STORAGE_SITE

_ROLES = {SITE: "jobs", STORAGE_SITE: "storage"}


def assess_site(store: ResultsReader, site: str) -> SubjectState:
    """Assess a site by the worse state of its jobs and its storage, with the figures of its rules."""
    rows = state_history.list_current_states(store, site=site)
    return _build_state(site, rows, _measure_figures(store, site))


def assess_sites(store: ResultsReader) -> list[SubjectState]:
    """Assess all sites and central events, without figures."""
    by_site: defaultdict[str, list[StatusChangeRow]] = defaultdict(list)
    central = []
    for row in state_history.list_current_states(store):
        if row.subject_kind == CENTRAL:
            central.append(_build_central_state(row))
        else:
            by_site[row.site].append(row)
    names = sorted({*by_site, *overview_queries.list_sites(store)} - {""})
    return [*central, *(_build_state(name, by_site[name]) for name in names)]


def _build_state(
    site: str, rows: Sequence[StatusChangeRow], figures: Iterable[AlarmFigure] = ()
) -> SubjectState:
    if not rows:
        return SubjectState(
            AlarmKind.SITE,
            site,
            AlarmLevel.UNKNOWN,
            "no state was evaluated",
            figures=tuple(figures),
            evidence=f"/sites/{quote(site, safe='')}",
        )
    worst = min(rows, key=lambda row: WORST_FIRST.index(SiteState(row.state)))
    return SubjectState(
        AlarmKind.SITE,
        site,
        AlarmLevel(worst.state.upper()),
        worst.reason if len(rows) == 1 else f"{_ROLES[worst.subject_kind]}: {worst.reason}",
        details=_list_details(rows),
        figures=tuple(figures),
        since_us=worst.since_us,
        evidence=_link_change(worst),
        rule=f"{worst.cause}/{worst.rule_version}",
        is_excused=worst.cause == CENTRAL_CAUSE or worst.state == SiteState.DOWNTIME,
    )


def _build_central_state(row: StatusChangeRow) -> SubjectState:
    return SubjectState(
        AlarmKind.CENTRAL,
        row.site,
        AlarmLevel(row.state.upper()),
        row.reason,
        since_us=row.since_us,
        evidence=_link_change(row),
        rule=f"{row.cause}/{row.rule_version}",
    )


def _link_change(row: StatusChangeRow) -> str:
    """Return the path of the page with the evidence of a change."""
    return f"/state-changes/{quote(row.id, safe='')}"


def _describe_row(row: StatusChangeRow) -> str:
    since = datetime.fromtimestamp(row.since_us / SECOND_US, UTC)
    text = f"{_ROLES[row.subject_kind]}: {row.state} since {since:%Y-%m-%d %H:%M} UTC"
    return f"{text}, {use_by_state(row).usability}, by {row.cause}: {row.reason}"


def _list_details(rows: Sequence[StatusChangeRow]) -> tuple[str, ...]:
    """List the states of jobs and storage, and who and why; the same explanation once."""
    explanations = (str(FailureExplanation.from_change(row) or "") for row in rows)
    return (*map(_describe_row, rows), *filter(None, dict.fromkeys(explanations)))


def _measure_figures(store: ResultsReader, site: str) -> list[AlarmFigure]:
    """Measure the figures of the site's jobs that the latest evaluation judged by shares."""
    latest = state_history.find_latest_rule_set(store)
    if latest is None:
        return []
    document = json.loads(latest.document)
    return [
        figure
        for name, values in sorted(document["rules"].items())
        if values["kind"] == "share" and SITE in values["sites"]
        for figure in _measure_share(
            store,
            site,
            name,
            ShareRule.model_validate(values),
            (document["storage_failures"], document.get("test_failures", [])),
            latest.evaluated_us,
        )
    ]


def _measure_share(
    store: ResultsReader,
    site: str,
    name: str,
    rule: ShareRule,
    classes: tuple[list[str], list[str]],
    to_us: int,
) -> list[AlarmFigure]:
    runs = list_run_outcomes(store, to_us - duration_us(rule.window), to_us)
    charged = [one for run in runs if run.site == site and (one := charge_run(run, SITE, *classes))]
    good, bad = sum(one.good for one in charged), sum(one.bad for one in charged)
    return [
        AlarmFigure(f"{name}_good", good),
        AlarmFigure(f"{name}_failed", bad),
        AlarmFigure(
            f"{name}_failed_per_good",
            100 * bad / good if good else None,
            "%",
            warning=100 * rule.max_failed_per_success,
        ),
    ]
