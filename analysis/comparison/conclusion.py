"""Conclusion of a comparison: the headline verdict of each variant, and a paragraph for newcomers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TypeVar

from treehammer.analysis.comparison.series_changes import describe_changed_results
from treehammer.analysis.comparison.verdict_text import (
    METRIC_TITLES,
    describe_place,
    describe_variant,
    format_change_size,
    format_delta,
    list_metrics,
    name_side,
    name_value,
    side_names,
    strip_door,
    title_metric,
    word_verdict,
)
from treehammer.analysis.statistics.verdict import (
    ABSENT_VERDICTS,
    HOST_SCOPE,
    ONE_SIDED_VERDICTS,
    SITE_SCOPE,
    SITES_SCOPE,
    Verdict,
)
from treehammer.sql.core.evidence import ControlCheck
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.stored_comparisons import ReleaseEffect, VerdictCount
from treehammer.text_formatting import format_counts, format_significant, join_names

#: Scopes, the widest first, with words for several verdicts.
SCOPE_WORDS = {SITES_SCOPE: "over sites", SITE_SCOPE: "by site", HOST_SCOPE: "by host"}


#: Verdict on one metric of one variant.
ScopedT = TypeVar("ScopedT", VerdictRow, VerdictCount, ReleaseEffect)


def select_headline(rows: Iterable[ScopedT]) -> list[ScopedT]:
    """Select each variant's verdicts over sites, or those of its series if these say more.

    Every summary of a comparison is made of these rows, so that all of them agree.

    Args:
        rows: all verdicts of one comparison.
    """
    variants: dict[tuple[str, str], list[list[ScopedT]]] = defaultdict(lambda: [[], []])
    rows = list(rows)
    for row in rows:
        over_sites, series = variants[row.metric, strip_door(row.label)]
        (over_sites if row.scope == SITES_SCOPE else series).append(row)
    widest_ids = {id(row) for parts in variants.values() for row in _select_widest(*parts)}
    return [row for row in rows if id(row) in widest_ids]


def _select_widest(over_sites: Sequence[ScopedT], series: Sequence[ScopedT]) -> Sequence[ScopedT]:
    # Where no estimate over sites exists, those of the sites, or their reasons, say more.
    if judged := [row for row in over_sites if Verdict(row.verdict).is_statistical]:
        return judged
    one_sided = all(row.verdict in ONE_SIDED_VERDICTS for row in series)
    return (over_sites or series) if one_sided else series


def select_compared(rows: Sequence[ScopedT]) -> Sequence[ScopedT]:
    """Select the verdicts on what both sides read, of which changes are counted; all without any."""
    return [row for row in rows if row.verdict not in ABSENT_VERDICTS] or rows


#: Metric -> scope, the widest first -> verdict -> number of rows, the most frequent first.
HeadlineCounts = Mapping[str, Mapping[str, Mapping[str, int]]]


def count_headline(counts: Iterable[VerdictCount]) -> HeadlineCounts:
    """Count the verdicts of a comparison's headline."""
    totals: dict[str, dict[str, Counter[str]]] = {}
    for row in select_headline(counts):
        scopes = totals.setdefault(row.metric, {scope: Counter() for scope in SCOPE_WORDS})
        scopes[row.scope][row.verdict] += row.count
    return {
        metric: {scope: dict(counted.most_common()) for scope, counted in scopes.items() if counted}
        for metric, scopes in totals.items()
    }


def describe_headline(headline: HeadlineCounts) -> str:
    """Describe the counts with their scopes, equal metrics once: ``CPU and wall: 20 same over sites``."""
    metrics: dict[str, list[str]] = {}
    for metric, scopes in headline.items():
        texts = []
        for scope, counts in scopes.items():
            worded = {word_verdict(metric, verdict): count for verdict, count in counts.items()}
            texts.append(f"{format_counts(worded)} {SCOPE_WORDS[scope]}")
        metrics.setdefault(", ".join(texts), []).append(title_metric(metric))
    return "; ".join(f"{' and '.join(titles)}: {text}" for text, titles in metrics.items())


def count_slower(counts: Iterable[VerdictCount]) -> tuple[int, int, int, str]:
    """Count a comparison's slower, decided and compared variants, and name the scopes of their verdicts.

    A variant is slower if any verdict of its headline on the metric with most slower variants is.
    """
    by_metric: dict[str, list[VerdictCount]] = defaultdict(list)
    for row in select_compared(select_headline(counts)):
        by_metric[row.metric].append(row)
    totals = [
        (
            len({row.label for row in rows if row.verdict == Verdict.SLOWER}),
            len({row.label for row in rows if Verdict(row.verdict).is_decided}),
            len({row.label for row in rows}),
            " and ".join(name_scopes(rows)),
        )
        for rows in by_metric.values()
    ]
    return max(totals, key=lambda total: total[:3], default=(0, 0, 0, ""))


def name_scopes(rows: Iterable[VerdictCount | ReleaseEffect]) -> list[str]:
    """Name the scopes of verdicts, the widest first."""
    scopes = {row.scope for row in rows}
    return [text for scope, text in SCOPE_WORDS.items() if scope in scopes]


#: More results with one claim than this are counted; if nothing is known of them, some are named.
MAX_NAMED = 3
#: Metric that is mentioned beside CPU time.
WALL = "wall_per_event_s"


class Claim(Enum):
    """Claim about B and A: its wording at the start of a sentence, and after another claim.

    Claims with B as the subject come first, so that "it" refers to B.
    """

    MORE = "{b} needs {size} more {time} than {a}", "it needs {size} more"
    LESS = "{b} needs {size} less {time} than {a}", "it needs {size} less"
    SCATTERS = (
        "{b} scatters {size}, so that one number does not describe its {time}",
        "it scatters {size}",
    )
    SAME = (
        "there is no difference beyond {delta} in {time} between {b} and {a}",
        "there is no difference beyond {delta}",
    )
    UNDECIDED = (
        "it is undecided whether {b} needs more or less {time} than {a}{size}",
        "it is undecided{size}",
    )
    NOT_ENOUGH = (
        "there are not enough data to compare the {time} of {b} and {a}",
        "there are not enough data",
    )
    TOO_LITTLE = "too little was read to compare {b} and {a}", "too little was read"
    BUILD_DIFFERS = (
        "{b} and {a} are not compared, because their builds differ",
        "the builds differ",
    )
    VALUES_DIFFER = (
        "{b} and {a} are not compared, because they read different values",
        "they read different values",
    )
    OTHER_CONTENT = (
        "{b} and {a} hold different values, so their difference does not judge either",
        "they hold different values",
    )
    CONTROL_OFF = (
        "there is no verdict on the {time} of {b} and {a}, since the control is off",
        "there is no verdict",
    )
    ONLY_IN_A = "{b} was not measured", "{b} was not measured"
    ONLY_IN_B = "{base} was not measured", "{base} was not measured"
    FAILED = "{b} and {a} are not compared, because measurements failed", "measurements failed"


#: Wording of claims on other metrics than times per event.
_PLAIN_WORDING: Mapping[Claim, tuple[str, str]] = {
    Claim.MORE: ("{time} is {size} higher ({more}) with {b} than with {a}", "it is {size} higher"),
    Claim.LESS: ("{time} is {size} lower ({less}) with {b} than with {a}", "it is {size} lower"),
    Claim.UNDECIDED: (
        "it is undecided whether {time} is higher or lower with {b} than with {a}{size}",
        "it is undecided{size}",
    ),
}


@dataclass(frozen=True)
class _Result:
    """A row with its claim, and the part of the measurements that the claim holds for."""

    claim: Claim
    part: str
    row: VerdictRow


def describe_conclusion(
    rows: Sequence[VerdictRow],
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    good_controls: bool = True,
) -> str:
    """Describe the result of a comparison in plain sentences.

    Results of the test itself that differ come first: a time of other results answers another question.
    The rest is made of the comparison's headline: verdicts over sites replace those of single sites.  Wall
    time is mentioned only where more is claimed of it than of CPU time.

    Args:
        rows: all verdicts of one comparison; '' without any.
        names: of campaigns or commits, by identity.
        good_controls: whether to mention controls that are in order as well.
    """
    results = [*_describe_results(select_headline(rows), names)]
    controls = rows[0].evidence.controls if rows else ()
    checks = [*_describe_controls(controls, rows[0].axis if rows else "", names)]
    if controls and controls[0].is_off:
        results = [*checks, *results]
    elif good_controls:
        results += checks
    return " ".join(filter(None, [describe_changed_results(rows), *results]))


def _describe_results(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence on the first metric, and one on each other metric that differs from it."""
    place = _find_common_place(rows)
    opening = f"{place}, " if place else ""
    for news, scope in _list_news(rows):
        text = f"{opening}{_describe_metric(news, scope, names)}."
        opening = ""
        yield text if text.startswith(news[0].row.metric) else text[0].upper() + text[1:]


def _list_news(rows: Sequence[VerdictRow]) -> Iterator[tuple[list[_Result], _Scope]]:
    """Yield each metric's results that no earlier metric implies, if any, with their scope."""
    claims: dict[tuple[str, str], Claim] = {}
    for metric in list_metrics(rows):
        of_metric = [row for row in rows if row.metric == metric]
        results = [
            _Result(_list_claims(row)[0], describe_part(row, rows), row) for row in of_metric
        ]
        # Wall time mostly follows CPU time; other metrics each say something else.
        claims = claims if metric in METRIC_TITLES else {}
        if news := [
            result
            for result in results
            if _is_news(result.claim, claims.get(_identify_part(result.row)))
        ]:
            yield news, _Scope.find(results, rows)
        claims |= {_identify_part(result.row): result.claim for result in results}


def _is_news(claim: Claim, earlier: Claim | None) -> bool:
    """Return whether a claim adds to the one on CPU time, which is more certain than wall time."""
    if earlier is None:
        return True
    open_claims = (Claim.UNDECIDED, Claim.NOT_ENOUGH, Claim.CONTROL_OFF)
    return claim is not earlier and claim not in open_claims and earlier is not Claim.SCATTERS


def _identify_part(row: VerdictRow) -> tuple[str, str]:
    return row.comparison_key, row.site


@dataclass(frozen=True)
class _Scope:
    """All results on a metric.

    Attributes:
        total: number of results, including those that need no words.
        compared: number of those of which both sides were read; all without any.
        noun: a word for several of the compared ones.
        wall_times: verdicts on wall time, by the part of the measurements that they hold for.
    """

    total: int
    compared: int
    noun: str
    wall_times: Mapping[tuple[str, str], VerdictRow]

    @classmethod
    def find(cls, results: Sequence[_Result], rows: Sequence[VerdictRow]) -> _Scope:
        """Find out whether results differ in their variants or in their sites.

        Args:
            results: all results on a metric.
            rows: verdicts on all metrics.
        """
        compared = select_compared([result.row for result in results])
        labels, sites = ({getattr(row, name) for row in compared} for name in ("label", "site"))
        noun = "cases"
        if len(labels) == len(compared):
            noun = "variants" if len(sites) == 1 else noun
        elif len(sites) == len(compared):
            noun = "sites"
        wall_times = {_identify_part(row): row for row in rows if row.metric == WALL}
        return cls(len(results), len(compared), noun, wall_times)

    def describe_wall_time(self, claim: Claim, group: Sequence[_Result]) -> str:
        """Describe the change of wall time where the same is claimed of it; '' elsewhere."""
        metric = group[0].row.metric
        if metric == WALL or claim not in (Claim.MORE, Claim.LESS):
            return ""
        rows = [self.wall_times.get(_identify_part(result.row)) for result in group]
        same = [row for row in rows if row and _list_claims(row)[0] is claim]
        if len(same) < len(group):
            return ""
        return f" (wall time {_join_sizes([row.effect or 0.0 for row in same])} %)"


def _describe_metric(results: Sequence[_Result], scope: _Scope, names: Mapping[str, str]) -> str:
    """Describe the claims on one metric.

    Args:
        results: to describe, at least one.
        scope: all results on the metric.
        names: of campaigns, by identity.
    """
    row = results[0].row
    evidence, is_time = row.evidence, row.metric in METRIC_TITLES
    a, b = side_names(row, names)
    words = {
        "a": a if row.axis == "root" else name_side(row.axis, a),
        "base": name_side(row.axis, a),
        "b": name_side(row.axis, b),
        "time": f"{METRIC_TITLES[row.metric]} time per {evidence.work}" if is_time else row.metric,
        "delta": format_delta(evidence.delta).removeprefix("±"),
        "more": "better" if evidence.better == "higher" else "worse",
        "less": "worse" if evidence.better == "higher" else "better",
    }
    clauses: list[str] = []
    for claim in Claim:
        group = [result for result in results if claim in _list_claims(result.row)]
        if group:
            wordings = claim.value if is_time else _PLAIN_WORDING.get(claim, claim.value)
            wording = wordings[bool(clauses)]
            clause = wording.format(**words, size=_describe_size(claim, group))
            wall_time = scope.describe_wall_time(claim, group)
            clauses.append(clause + wall_time + _join_parts(group, scope))
    return "; ".join(clauses)


def _list_claims(row: VerdictRow) -> tuple[Claim, ...]:
    """List what is claimed of a row: a certain effect, then its scatter, which else stands alone."""
    verdict = Verdict(row.verdict)
    scatter = (Claim.SCATTERS,) if row.evidence.scatter and verdict.is_statistical else ()
    if verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT):
        return Claim.MORE if (row.effect or 0.0) > 0 else Claim.LESS, *scatter
    return scatter or (Claim[verdict.name],)


def _describe_size(claim: Claim, group: Sequence[_Result]) -> str:
    """Describe one change with its interval, or the smallest and the largest of several changes."""
    interval = _list_ends(group[0].row) if len(group) == 1 else []
    if claim is Claim.UNDECIDED:
        return f" (between {' and '.join(map(_describe_amount, interval))})" if interval else ""
    if claim is Claim.SCATTERS:
        return _describe_scatter(group)
    sizes = _join_sizes([result.row.effect or 0.0 for result in group])
    details = [f"{_join_sizes(interval)} %"] if interval else []
    # Some changes may be too small to matter, although they are not 0.
    if uncertain := sum(result.row.verdict == Verdict.DIFFERENT for result in group):
        limit = format_delta(group[0].row.evidence.delta).removeprefix("±")
        details.append(f"{'not' if uncertain == len(group) else 'not all'} surely beyond {limit}")
    return f"{sizes} % ({', '.join(details)})" if details else f"{sizes} %"


def _describe_scatter(group: Sequence[_Result]) -> str:
    """Describe the scatter where it is largest, against that of equal sides, and an uncertain effect."""
    result = max(group, key=lambda result: result.row.evidence.scatter[1])
    usual, scatter = result.row.evidence.scatter
    sizes = " against ".join(f"±{format_significant(100 * sd, 2)} %" for sd in (scatter, usual))
    ends = " to ".join(map(_describe_amount, _list_ends(result.row)))
    means = [f"on average {ends}"] if ends and result.claim is Claim.SCATTERS else []
    times = f"{scatter / usual:.0f} times more from launch to launch than equal sides"
    return f"{times} ({'; '.join([sizes, *means])})"


def _list_ends(row: VerdictRow) -> list[float]:
    """List the ends of the interval of a row; none without one."""
    return [end for end in (row.low, row.high) if end is not None]


def _join_sizes(effects: Sequence[float]) -> str:
    """Format the smallest and the largest effect without their signs, e.g. ``1.2 to 3.4``."""
    sizes = [format_change_size(effect) for effect in sorted(effects, key=abs)]
    return " to ".join(dict.fromkeys((sizes[0], sizes[-1])))


def _describe_amount(effect: float) -> str:
    return f"{format_change_size(effect)} % {'more' if effect > 0 else 'less'}"


def _join_parts(group: Sequence[_Result], scope: _Scope) -> str:
    """Name or count the parts that a claim holds for; '' where there is only one."""
    if scope.total == 1:
        return ""
    parts = [result.part for result in group if result.part]
    if len(group) > MAX_NAMED:
        is_gap = len(group) < scope.total and not Verdict(group[0].row.verdict).is_statistical
        names = f" ({join_names(parts, MAX_NAMED)})" if is_gap else ""
        return f" {_count_parts(group, scope)}{names}"
    text = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))
    return f" {text}" if text else ""


def _count_parts(group: Sequence[_Result], scope: _Scope) -> str:
    if scope.compared < scope.total and group[0].row.verdict in ABSENT_VERDICTS:
        return f"in {len(group):,} other cases"
    share = f"{len(group):,} of" if len(group) < scope.compared else "all"
    return f"{'at' if scope.noun == 'sites' else 'in'} {share} {scope.compared:,} {scope.noun}"


def describe_part(row: VerdictRow, rows: Sequence[VerdictRow]) -> str:
    """Name the variant of a row, with the site where rows are of several."""
    labels = {other.label for other in rows}
    words = [f"for {describe_variant(row.label)}"] if len(labels) > 1 else []
    if len({other.site for other in rows}) > 1:
        place = f"at {row.site}" if row.site else describe_place(row)
        words += [place] if row.site or row.effect is not None else []
    return " ".join(words)


def _find_common_place(rows: Sequence[VerdictRow]) -> str:
    """Describe where all rows hold; '' where their parts name several sites."""
    if len({row.site for row in rows}) != 1:
        return ""
    measured = [row for row in rows if row.effect is not None]
    places = {describe_place(row) for row in measured or rows}
    if len(places) == 1:
        return places.pop()
    site = rows[0].site
    return f"at {site}" if site else _join_site_counts(measured or rows, places)


def _join_site_counts(rows: Sequence[VerdictRow], places: set[str]) -> str:
    """Join places such as ``over 3 sites`` to ``over 3 to 5 sites``; '' if one is of another kind."""
    numbers = [len(row.evidence.sites) for row in rows]
    is_counted = places == {f"over {number:,} sites" for number in numbers}
    return f"over {min(numbers):,} to {max(numbers):,} sites" if is_counted else ""


def _describe_controls(
    controls: Sequence[ControlCheck], axis: str, names: Mapping[str, str]
) -> Iterator[str]:
    """Describe those controls that are off, and that of the first metric."""
    for index, check in sorted(enumerate(controls), key=lambda numbered: not numbered[1].is_off):
        value = name_value(axis, check.base, names)
        base = value if axis == "root" else name_side(axis, value)
        pair = f"{base} against itself" if check.base else "equal executions"
        difference = f"({pair}) differs by {format_change_size(check.mean)} %"
        if check.is_off:
            yield (
                f"Do not trust the {title_metric(check.metric)} time: the control {difference}, although "
                "it compares equals."
            )
        elif index == 0 and check.launches == 1:
            yield f"The only control launch {difference}."
        elif index == 0:
            reason = "which is fine" if check.is_in_order else "which may be its scatter"
            yield f"The control {difference}, {reason}."
