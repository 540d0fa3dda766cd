"""Texts and number formats of a comparison, common to the terminal and pages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from treehammer.analysis.statistics.metric_units import format_metric, head_unit
from treehammer.analysis.statistics.sample import CONTEXT_AXES, SELECTION_AXIS
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    HOST_SCOPE,
    MAX_JOBS_NAMED,
    OPEN_VERDICTS,
    SITE_SCOPE,
    SITES_SCOPE,
    THROUGH_BASE,
    Verdict,
)
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import COMMIT_AXIS, format_commit
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.read.query_model import Condition, parse_alternatives
from treehammer.text_formatting import (
    format_signed,
    format_significant,
    pluralize,
    write_minus,
)

#: A label of axes with their values.
_AXIS_VALUES = re.compile(r"\w+=\S+(?: \w+=\S+)*")
#: A share of the branches or events in the label of a variant.
_FRACTION = re.compile(r"\b(branches|events)=(\S+)%")
#: Largest effect (in ln, a factor of ten thousand) that is written out, of either sign.
MAX_SHOWN_EFFECT = math.log(1e4)

#: Before the door in the label of a series where its site has several.
DOOR_WORD = " door="
#: Times per event -> titles in tables; other headline metrics have their names.
METRIC_TITLES = {"cpu_per_event_s": "CPU", "wall_per_event_s": "wall"}
#: Verdicts on other metrics than times, where nothing is slow or fast.
_PLAIN_WORDS = {Verdict.SLOWER.value: "worse", Verdict.FASTER.value: "better"}


def title_metric(metric: str) -> str:
    """Return the title of a headline metric."""
    return METRIC_TITLES.get(metric, metric)


def list_metrics(rows: Iterable[VerdictRow]) -> list[str]:
    """List the metrics of a comparison: times per event, then the others in the order of rows."""
    names = [row.metric for row in rows]
    return [name for name in dict.fromkeys((*METRIC_TITLES, *names)) if name in names]


def format_metric_value(metric: str, value: float, unit: str) -> str:
    """Format a headline metric's value: times per event without unit, else with it."""
    return format_metric(metric, value, unit, with_unit=metric not in METRIC_TITLES)


def title_metrics(rows: Sequence[VerdictRow]) -> str:
    """Return the heading of the column of metrics: ``time``, or ``metric`` with the unit of times."""
    times = [row for row in rows if row.metric in METRIC_TITLES]
    unit = f"\ntimes in\n{find_common_unit(times)}" if times else ""
    return "time" if len(times) == len(rows) else f"metric{unit}"


def name_directions(rows: Iterable[VerdictRow]) -> str:
    """Name both directions of effects, for an axis."""
    is_time = all(row.metric in METRIC_TITLES for row in rows)
    return "faster ← 0 → slower" if is_time else "lower ← 0 → higher"


def title_side(rows: Sequence[VerdictRow], side: str) -> str:
    """Return the heading of a side's values, with the unit below if all are times per event."""
    return "\n".join(filter(None, (side, find_common_unit(rows))))


def find_common_unit(rows: Sequence[VerdictRow]) -> str:
    """Find the unit of times per event, ``ms/event``; '' if rows have units of their own."""
    if any(row.metric not in METRIC_TITLES for row in rows):
        return ""
    works = {row.evidence.work for row in rows}
    return head_unit(next(iter(METRIC_TITLES)), work=works.pop() if len(works) == 1 else "event")


def format_delta(delta: float | None) -> str:
    """Format the band of effects (ln) that count as none, e.g. ``±2 %``."""
    return f"±{100 * (delta or 0.0):g} %"


def comparison_title(row: VerdictRow, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Describe the row's comparison, e.g. ``ROOT 6.40.00 against 6.38.00, site=SITE_A, ±5 %``.

    Args:
        row: any of it.
        names: of campaigns, by identity.
    """
    evidence = row.evidence
    a, b = side_names(row, names)
    sides = f"{b} against {a}"
    axis = "ROOT" if row.axis == "root" else row.axis
    is_named = row.axis == SELECTION_AXIS or (row.axis == COMMIT_AXIS and " " in b)
    words = [sides if is_named else f"{axis} {sides}"]
    words.append(describe_selection(evidence, names, sides=row.axis != SELECTION_AXIS))
    if evidence.among:
        words.append(f"among {len(evidence.among)} asked together")
    if evidence.delta not in (None, DEFAULT_DELTA):
        words.append(format_delta(evidence.delta))
    return ", ".join(words)


def side_names(row: VerdictRow, names: Mapping[str, str]) -> tuple[str, str]:
    """Name A and B of a comparison; ``names`` maps identities of campaigns, or commits, to names."""
    return name_value(row.axis, row.a, names), name_value(row.axis, row.b, names)


def name_value(axis: str, value: str, names: Mapping[str, str]) -> str:
    """Name a value of an axis; ``names`` maps identities of campaigns, commits or commands to names."""
    return names.get(value) or (format_commit(value) if axis == COMMIT_AXIS else value)


def name_side(axis: str, value: str) -> str:
    """Name a side with its axis, e.g. ``ROOT 6.40.00`` or ``cache_mb=30``."""
    if axis == "root" and value[:1].isdigit():
        return f"ROOT {value}"
    if axis == "command" or (axis == COMMIT_AXIS and " " in value):  # a branch with its commit
        return value
    is_noun = axis in (*CONTEXT_AXES, SELECTION_AXIS, COMMIT_AXIS)
    return f"{axis} {value}" if is_noun else f"{axis}={value}"


def describe_selection(
    evidence: VerdictEvidence,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    sides: bool = True,
) -> str:
    """Describe the compared measurements, e.g. ``campaign nightly and site=SITE_A``.

    Args:
        evidence: evidence of any of its rows.
        names: of campaigns, by identity.
        sides: whether to name the conditions on one side alone.
    """
    if evidence.campaigns is None:
        return "selection not recorded"
    campaigns = [names.get(campaign, campaign) for campaign in evidence.campaigns]
    words = [f"campaign {' or '.join(campaigns)}"] if campaigns else []
    words += _format_conditions(evidence.where)
    if sides:
        words += [f"A: {text}" for text in _format_conditions(evidence.where_a)]
        words += [f"B: {text}" for text in _format_conditions(evidence.where_b)]
    return " and ".join(words) or "all measurements"


def _format_conditions(texts: Sequence[str] | None) -> list[str]:
    try:
        return [_format_condition(where) for where in parse_alternatives(texts or ())]
    except ConfigError:
        # Stored by another version, with a column that this one does not know.
        return [*(texts or ())]


def _format_condition(where: Condition) -> str:
    """Write a condition; bounds of days as ``days from 2026-11-01`` and ``days to 2026-11-30``.

    Not as "since", which says when a change began.
    """
    bound = {">=": "days from", "<=": "days to"}.get(where.operator)
    text = str(where.value)
    if bound is None or where.column != "day" or len(text) != 8:
        return str(where)
    return f"{bound} {text[:4]}-{text[4:6]}-{text[6:]}"


def format_effect(effect: float) -> str:
    """Format an effect in ln as a signed change of B against A in percent, e.g. ``+3.1 %``."""
    return f"{_format_change(effect)} %"


def format_interval(row: VerdictRow | ChangePointRow) -> str:
    """Format the row's interval in percent, e.g. ``−0.4 … +2.2 %``; '' without one."""
    if row.low is None or row.high is None:
        return ""
    return f"{_format_change(row.low)} … {_format_change(row.high)} %"


def describe_change(effect: float, metric: str = "cpu_per_event_s", better: str = "lower") -> str:
    """Describe an effect in words, e.g. ``3.1 % slower``, of other metrics ``3.1 % higher (better)``."""
    size = f"{format_change_size(effect)} %"
    if metric in METRIC_TITLES:
        return f"{size} {'slower' if effect > 0 else 'faster'}"
    quality = "better" if (effect > 0) == (better == "higher") else "worse"
    return f"{size} {'higher' if effect > 0 else 'lower'} ({quality})"


def format_change_size(effect: float) -> str:
    """Format an effect without its sign, in percent, e.g. ``3.1``."""
    return _format_change(effect).replace("<−", ">").replace(">+", ">").lstrip("+−")


def format_change_interval(low: float, high: float) -> str:
    """Format the ends of an interval in percent, e.g. ``[2.2, 4.0]``."""
    return f"[{', '.join(_format_change(end).removeprefix('+') for end in (low, high))}]"


def _format_change(effect: float) -> str:
    if effect > MAX_SHOWN_EFFECT:
        return f">+{100 * math.expm1(MAX_SHOWN_EFFECT):,.0f}"
    if effect < -MAX_SHOWN_EFFECT:
        return f"<−{-100 * math.expm1(-MAX_SHOWN_EFFECT):.2f}"
    percent = 100 * math.expm1(effect)
    # Nothing takes 100.0 % less.
    return format_signed(percent) if percent > -99.95 else write_minus(f"{percent:.2f}")


def digits_for_error(error: float) -> int:
    """Return the decimals that show an error (above 0) to its second digit."""
    return max(1 - math.floor(math.log10(error)), 0)


def format_mean(mean: float, low: float | None, high: float | None) -> str:
    """Format a mean with half of its interval, to two digits of that, e.g. ``24.2 ± 1.3``."""
    plain = format_significant(mean, 4)
    if low is None or high is None:
        return plain
    error = (high - low) / 2
    if error <= 1e-3 * abs(mean):
        return f"{plain} ± {error:.1g}"
    digits = digits_for_error(error)
    return write_minus(f"{mean:,.{digits}f} ± {error:,.{digits}f}")


def format_ratio(value: float, low: float | None, high: float | None) -> str:
    """Format a ratio and its interval, e.g. ``0.58 (0.43 … 0.77)``."""
    if low is None or high is None:
        return format_significant(value)
    digits = digits_for_error(max((high - low) / 2, 1e-6 * value))
    texts = [f"{number:,.{digits}f}" for number in (value, low, high)]
    return f"{texts[0]} ({texts[1]} … {texts[2]})"


def describe_scope(row: VerdictRow) -> str:
    """Describe the scope of a verdict, e.g. ``on this host (6 launches)``."""
    evidence = row.evidence
    units = pluralize(row.jobs, evidence.counted)
    units = f"{evidence.launches:,} launches" if evidence.launches else units
    if row.scope == SITE_SCOPE:
        units += f" on {row.hosts:,} hosts"
    return f"{describe_place(row)} ({units})"


def strip_door(label: str) -> str:
    """Remove the door from the label of a series, as verdicts over sites are named."""
    return label.partition(DOOR_WORD)[0]


def describe_variant(label: str) -> str:
    """Describe the kind of read of a label: ``branches=4% root=6.40.00`` is ``4 % of the branches (root=6.40.00)``."""
    if not _AXIS_VALUES.fullmatch(label):
        return label
    # Variants are listed with commas between them.
    text = re.sub(r"\b(branches|events)=100%", r"all \1", label.replace(" ", "\n"))
    first, *rest = _FRACTION.sub(r"\2 % of the \1", text).split("\n")
    return f"{first} ({', '.join(rest)})" if rest else first


def describe_place(row: VerdictRow) -> str:
    """Say where a verdict holds, e.g. ``on this host``."""
    if row.scope == SITES_SCOPE and not row.evidence.sites:
        return "over sites"  # none of them enters
    if row.scope == SITES_SCOPE:
        scope = "on average at these" if row.evidence.tau is None else "over"
        host = " on one host" if row.hosts == 1 else ""
        return f"{scope} {len(row.evidence.sites):,} sites{host}"
    if row.scope == HOST_SCOPE and row.hosts and row.evidence.counted == "job":
        return "on this host" if row.hosts == 1 else f"on these {row.hosts} hosts"
    return f"at {row.site}"


def describe_verdict(row: VerdictRow, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Say a verdict in one sentence, e.g. ``6.40.00 is 3.1 % slower [2.2, 4.0] on this host (…)``.

    Args:
        row: with any verdict; '' without an effect and its interval.
        names: of campaigns, by identity.
    """
    if row.effect is None or row.low is None or row.high is None:
        return ""
    a, b = side_names(row, names)
    evidence = row.evidence
    where = f"{format_change_interval(row.low, row.high)} {describe_scope(row)}"
    change = _format_change(row.effect)
    within = format_delta(evidence.delta)
    subject = b if row.metric in METRIC_TITLES else f"{row.metric} with {b}"
    if evidence.prediction:
        where += f", at one more site {format_change_interval(*evidence.prediction)}"
    if row.verdict in (Verdict.SLOWER, Verdict.FASTER):
        return f"{subject} is {describe_change(row.effect, row.metric, evidence.better)} {where}"
    if row.verdict == Verdict.SAME:
        return f"{b} is the same as {a} within {within} {where}"
    if row.verdict == Verdict.DIFFERENT:
        return f"{subject} differs by {change} % {where}, perhaps by less than {within}"
    return f"{row.verdict}: {b} against {a} {change} % {where}"


def word_verdict(metric: str, verdict: str) -> str:
    """Word a verdict; on metrics other than times it is ``better`` or ``worse``."""
    return verdict if metric in METRIC_TITLES else _PLAIN_WORDS.get(verdict, verdict)


def format_verdict(row: VerdictRow, *, with_plan: bool = True) -> str:
    """Format the verdict with the campaign that would decide, e.g. ``undecided, 24 jobs planned``."""
    words = [word_verdict(row.metric, row.verdict)]
    words += ["scatters"] if row.evidence.scatter else []
    if row.verdict == Verdict.NOT_ENOUGH and row.jobs_needed is not None:
        unit = "launches" if row.evidence.launches else f"{row.evidence.counted}s"
        words.append(f"{row.jobs_needed} {unit} needed")
    elif row.verdict in OPEN_VERDICTS and with_plan:
        words.append(_describe_plan(row))
    if row.evidence.unpaired:
        words.append("unpaired")
    if THROUGH_BASE in row.evidence.test:
        words.append(THROUGH_BASE)
    return ", ".join(words)


def _describe_plan(row: VerdictRow) -> str:
    evidence = row.evidence
    if row.jobs_needed is None:
        return f"more than {MAX_JOBS_NAMED} {evidence.counted}s would decide"
    jobs = pluralize(row.jobs_needed, f"new {evidence.counted}")
    plans = ((evidence.sites_needed, "at", "site"), (evidence.hosts_needed, "on", "host"))
    for count, place, unit in plans:
        if count is not None:
            return f"{jobs} {place} {pluralize(count, unit)} would decide"
    return f"{jobs} would decide"


def explain_not_pooled(rows: Sequence[VerdictRow]) -> list[str]:
    """List the reasons why release rows have no effect over sites, each once."""
    reasons = [row.evidence.why for row in rows if row.effect is None]
    return list(dict.fromkeys(f"Over sites: {why}." for why in reasons))


def flatten_verdict(row: VerdictRow) -> dict[str, Any]:
    """Merge the row and its evidence into plain values, for tables, JSON and CSV."""
    # Documents of evidence are never changed, so that only the controls need a plain form.
    values, evidence = dict(vars(row)), vars(row.evidence)
    del values["evidence"]
    controls = tuple(map(asdict, row.evidence.controls))
    return {**values, **evidence, "controls": controls, "sentence": describe_verdict(row)}
