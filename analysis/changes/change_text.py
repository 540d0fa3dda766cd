"""Changes in words, and their selection by site and release."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from treehammer.analysis.changes.daily_series import (
    Attribution,
    ChangeState,
    NodeIdentity,
    SeriesKind,
)
from treehammer.analysis.comparison.verdict_text import format_effect, title_metric
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.sql.core.watch_rows import ChangePointRow

#: Attribution -> its wording; ``{}`` is the subject.
_SUBJECTS: Mapping[str, str] = {
    Attribution.SITE: "site {}",
    Attribution.RELEASE: "ROOT {}",
    Attribution.STORAGE: "storage {}",
    Attribution.CENTRAL: "everywhere",
    Attribution.UNKNOWN: "cause unknown",
}


def name_subject(change: ChangePointRow) -> str:
    """Name the subject to which a change is attributed."""
    return _SUBJECTS.get(change.attribution, "{}").format(change.subject)


def format_day(day: int) -> str:
    """Format a day number as an ISO date."""
    date_ = number_to_day(day)
    return date_.isoformat() if date_ else str(day)


def format_interval(change: ChangePointRow) -> str:
    """Format the 95 % interval of the size."""
    return f"{format_effect(change.low)} to {format_effect(change.high)}"


def describe_quantity(change: ChangePointRow) -> str:
    """Describe the quantity that changed, and how nodes are identified if not by name."""
    metric = title_metric(change.metric)
    if change.kind == SeriesKind.LEVEL:
        properties = [name for name in list_node_identities(change) if name != NodeIdentity.HOST]
        nodes = f" (nodes by {' and '.join(properties)})" if properties else ""
        return f"{metric} of {change.control}{nodes}"
    return f"{metric} relative to {change.control}"


def describe_change(change: ChangePointRow) -> str:
    """Describe a change in one sentence."""
    state = ", provisional" if change.state == ChangeState.PROVISIONAL else ""
    places = [place for place in list_places(change) if place.get("site")]
    where = _describe_places(places) if change.attribution == Attribution.UNKNOWN else ""
    cause = f"; changed on that day: {change.cause}" if change.cause else ""
    name = name_subject(change)
    return (
        f"{name[0].upper()}{name[1:]}{where}: {describe_quantity(change)} of {change.test_name} "
        f"{format_effect(change.effect)} ({format_interval(change)}) since {format_day(change.day)}"
        f"{state}{cause}"
    )


def _describe_places(places: Iterable[Mapping[str, Any]]) -> str:
    sites = sorted({str(place["site"]) for place in places})
    return f", at {', '.join(sites[:3])}{f' and {len(sites) - 3} more' if len(sites) > 3 else ''}"


def is_regression(change: ChangePointRow) -> bool:
    """Return whether a change made reading slower."""
    return change.effect > 0


def list_places(change: ChangePointRow) -> list[dict[str, Any]]:
    """List the changed series of a change; none where the evidence cannot be read."""
    try:
        evidence = json.loads(change.evidence)
    except ValueError:
        return []
    rows = evidence if isinstance(evidence, list) else []
    return [row for row in rows if isinstance(row, dict)]


def list_node_identities(change: ChangePointRow) -> list[str]:
    """List the properties by which nodes were recognized; none for ratios."""
    names = {place.get("nodes_by") for place in list_places(change)}
    return [name.value for name in NodeIdentity if name in names]


def select_changes(
    changes: Iterable[ChangePointRow], site: str = "", release: str = ""
) -> list[ChangePointRow]:
    """Select the changes of a site (as site or storage) and of a release.

    A change everywhere is one of each site. Levels concern the control release alone.
    """
    return [
        change
        for change in changes
        if (not site or _concerns_site(change, site))
        and (not release or _concerns_release(change, release))
    ]


def _concerns_site(change: ChangePointRow, site: str) -> bool:
    return any(
        site in (place.get("site"), place.get("storage_site")) for place in list_places(change)
    )


def _concerns_release(change: ChangePointRow, release: str) -> bool:
    if change.kind == SeriesKind.LEVEL:
        return change.control == release
    return any(place.get("release") == release for place in list_places(change))


def make_change_record(change: ChangePointRow) -> dict[str, Any]:
    """Make the record of a change for tables, pages and programs."""
    return {
        "id": change.id,
        "since": format_day(change.day),
        "state": change.state,
        "points_at": name_subject(change),
        "attribution": change.attribution,
        "subject": change.subject,
        "quantity": describe_quantity(change),
        "kind": change.kind,
        "metric": change.metric,
        "test": change.test_name,
        "control": change.control,
        "change": format_effect(change.effect),
        "interval": format_interval(change),
        "effect": change.effect,
        "low": change.low,
        "high": change.high,
        "p": change.p_value,
        "days_before": change.days_before,
        "days_after": change.days_after,
        "seconded": change.seconded,
        "cause": change.cause,
        "sites": sorted({str(place["site"]) for place in list_places(change) if place.get("site")}),
    }
