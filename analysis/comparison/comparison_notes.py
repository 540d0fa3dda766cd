"""Notes below a table of verdicts: attribution of slowdowns, exclusions, meaning and suggested actions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from types import MappingProxyType

from treehammer.analysis.comparison.verdict_text import (
    METRIC_TITLES,
    describe_change,
    describe_variant,
    format_change_interval,
    format_delta,
    format_effect,
    list_metrics,
    name_side,
    side_names,
    title_metric,
    word_verdict,
)
from treehammer.analysis.statistics.verdict import (
    ALPHA,
    HOST_SCOPE,
    MIN_HOSTS,
    MIN_SITES,
    ONE_SIDED_VERDICTS,
    SERIES_SCOPES,
    THROUGH_BASE,
    Verdict,
)
from treehammer.collectors.job_spec import MIN_CPU_S, MIN_LAUNCH_CPU_S
from treehammer.sql.core.evidence import ControlCheck, VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.text_formatting import join_names

#: More names than this make a sentence unreadable.
MAX_NAMED = 6


def attribute_rows(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Say in sentences where slowdowns point, each with the times it holds for.

    A site that differs from the others over all variants points at that site; a variant that is
    slower over the other sites points at the compared value.  Empty when neither was found.

    Args:
        rows: of the comparison.
        names: of campaigns, by identity.
    """
    metrics_by_sentence: dict[str, list[str]] = {}
    for metric in list_metrics(rows):
        for sentence in _attribute_metric([row for row in rows if row.metric == metric], names):
            metrics_by_sentence.setdefault(sentence, []).append(title_metric(metric))
    return tuple(
        f"{' and '.join(titles)}: {sentence}" for sentence, titles in metrics_by_sentence.items()
    )


@dataclass(frozen=True)
class _Findings:
    """Findings of one metric: sites that stand apart, variants that are slower, and other slow rows.

    ``shifts`` maps a site to (shift, low, high) in ln.
    """

    shifts: Mapping[str, tuple[float, ...]]
    slower: Sequence[str]
    unexplained: Sequence[VerdictRow]

    @classmethod
    def collect(cls, rows: Sequence[VerdictRow]) -> _Findings:
        """Collect the findings from the rows' evidence."""
        shifts = {row.site: row.evidence.site_shift for row in rows if row.evidence.site_shift}
        slower = [row.label for row in rows if row.evidence.points_at_change]
        unexplained = [
            row
            for row in rows
            if row.verdict == Verdict.SLOWER
            and row.scope in SERIES_SCOPES
            and row.site not in shifts
            and row.label not in slower
        ]
        return cls(shifts, slower, unexplained)


def _attribute_metric(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> Iterator[str]:
    findings = _Findings.collect(rows)
    metric, worse = rows[0].metric, word_verdict(rows[0].metric, Verdict.SLOWER)
    better = rows[0].evidence.better
    if findings.slower:
        where = "at the other sites" if findings.shifts else "over the sites"
        variants = join_names([*map(describe_variant, findings.slower)], MAX_NAMED)
        yield f"{worse} {where}, which points at {_name_change(rows, names)}: {variants}"
    for site, (shift, low, high) in findings.shifts.items():
        yield (
            f"{site} is {describe_change(shift, metric, better)} {format_change_interval(low, high)} than the other "
            "sites, which points at that site"
        )
    if not findings.unexplained:
        return
    judged = {row.site for row in rows if row.site and Verdict(row.verdict).is_statistical}
    if len(judged) == 1:
        yield (
            f"{worse} at the only site that was judged ({judged.pop()}), which points at "
            f"{_name_change(rows, names)} or at that site"
        )
    else:
        places = [f"{describe_variant(row.label)} at {row.site}" for row in findings.unexplained]
        yield (
            f"{worse}, but neither over the sites nor in all variants of a site: "
            f"{join_names(places, MAX_NAMED)}"
        )


def rank_sites(rows: Sequence[VerdictRow], metric: str) -> str:
    """Name the sites at which a metric improves and worsens most, by the mean of their variants.

    Only sites with a certain change count; '' for fewer than two judged sites.
    """
    rows_by_site = _group_judged(rows, metric)
    if len(rows_by_site) < 2:
        return ""
    gains = _list_changed_sites(rows_by_site, Verdict.FASTER)
    losses = _list_changed_sites(rows_by_site, Verdict.SLOWER)
    parts = [f"Gain: {join_names(gains, MAX_NAMED)}"] if gains else []
    parts += [f"Lose: {join_names(losses, MAX_NAMED)}"] if losses else []
    rest = len(rows_by_site) - len(gains) - len(losses)
    if not parts:
        return f"No site gains or loses {title_metric(metric)} for certain, of {rest} judged."
    more = f". No certain change: {rest} more" if rest > 0 else ""
    return f"{title_metric(metric)}, {'. '.join(parts)}{more}"


def _list_changed_sites(sites: Mapping[str, Sequence[VerdictRow]], verdict: Verdict) -> list[str]:
    """List the sites with a verdict and their mean effects, the largest first."""
    means = {
        site: fmean(row.effect or 0.0 for row in rows)
        for site, rows in sites.items()
        if any(row.verdict == verdict for row in rows)
    }
    ranked = sorted(means, key=lambda site: -abs(means[site]))
    return [f"{site} ({format_effect(means[site])})" for site in ranked]


def _group_judged(rows: Sequence[VerdictRow], metric: str) -> dict[str, list[VerdictRow]]:
    """Group the rows of series with an effect on a metric by the sites that were judged."""
    groups: dict[str, list[VerdictRow]] = defaultdict(list)
    for row in rows:
        if row.metric == metric and row.scope in SERIES_SCOPES and row.effect is not None:
            groups[row.site].append(row)
    return {
        site: of_site
        for site, of_site in groups.items()
        if any(Verdict(row.verdict).is_statistical for row in of_site)
    }


def summarize_attribution(
    rows: Sequence[VerdictRow], names: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the findings of :func:`attribute_rows`, or a sentence that explains their absence."""
    if sentences := attribute_rows(rows, names):
        return sentences
    if not any(Verdict(row.verdict).is_statistical for row in rows):
        return ("No verdict could be given, so nothing is attributed to a site or a cause.",)
    changed = "the release" if rows[0].axis == "root" else rows[0].axis
    return (f"Nothing slower was found that points at a site or at {changed}.",)


def _name_change(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> str:
    axis, name = rows[0].axis, side_names(rows[0], names)[1]
    return "the release" if axis == "root" else name_side(axis, name)


_PLAN = (
    "submit a new campaign of the size named (-S repeats=N) and compare it alone (--campaign); "
    "to look again as jobs come in would double the false verdicts"
)
#: Suggested action for each statistical verdict; refused series have their own remedy.
REMEDIES: Mapping[Verdict, str] = {
    Verdict.UNDECIDED: _PLAN,
    Verdict.DIFFERENT: _PLAN,
    Verdict.CONTROL_OFF: "repeat the campaign on quieter nodes",
}
#: Verdicts that have a sentence of their own.
_EXPLAINED = (Verdict.BUILD_DIFFERS, Verdict.TOO_LITTLE, Verdict.OTHER_CONTENT)

#: Axis on which comparisons name the versions of servers already.
SERVER_AXIS = "server_version"

#: Sentences on the builds by field of the evidence.
_BUILD_SENTENCES: Mapping[str, str] = {
    "bundled": "Part of the release, since ROOT brings it along: {}.",
    "repackaged": "Counted as the same compiler, from another package of the distributor: {}.",
    "unknown": "Recorded for one build only, so not compared: {}.",
}


def comparison_notes(rows: Sequence[VerdictRow]) -> list[str]:
    """Build the notes below a comparison."""
    series = [row for row in rows if row.scope in SERIES_SCOPES]
    notes = [*_scope_notes(rows), *describe_environment(rows), *_exclusion_notes(series)]
    notes += () if _differ_in_servers(series) else _server_notes(series)
    if any(row.verdict == Verdict.DIFFERENT for row in series):
        notes.append(
            "Different: the effect is not 0, but may lie within "
            f"{format_delta(series[0].evidence.delta)}, so it is called neither slower nor faster; a "
            "smaller --delta judges smaller effects."
        )
    notes += _remedy_notes(series)
    data = {row.comparison_key: row.evidence.same_data for row in series}
    results = [f"{text} for {count:,}" for text, count in sorted(Counter(data.values()).items())]
    notes.append(f"Value checksums, of {len(data):,} series: {', '.join(results)}.")
    notes += _left_out_notes(series)
    if any(row.jobs for row in series):
        notes += _reading_notes(series)
    return [*notes, *control_notes(rows[0].evidence.controls)]


def describe_environment(rows: Sequence[VerdictRow], *, harmless: bool = True) -> list[str]:
    """Describe what differs between the sides beside the compared value: builds, libraries, nodes, servers.

    Args:
        rows: all verdicts of one comparison.
        harmless: whether to name differences of builds that are part of the release, too.
    """
    series = [row for row in rows if row.scope in SERIES_SCOPES]
    notes = [*_build_notes(series), *(_harmless_notes(series) if harmless else ())]
    if nodes := _collect_texts(row.evidence.nodes for row in series):
        unpaired = any(row.evidence.unpaired for row in series)
        reason = ", whose effect cannot be told from that of the compared value" if unpaired else ""
        notes.append(f"Nodes differ between the sides{reason}: {join_names(nodes, MAX_NAMED)}.")
    return [*notes, *(_server_notes(series) if _differ_in_servers(series) else ())]


def _scope_notes(rows: Sequence[VerdictRow]) -> Iterator[str]:
    if any(row.scope == HOST_SCOPE and row.effect is not None for row in rows):
        yield (
            f"Series on fewer than {MIN_HOSTS} hosts are judged on just these hosts; "
            "other hosts of the site may differ."
        )
    pooled = [row.evidence for row in rows if not row.site]
    if any(1 < len(evidence.sites) < MIN_SITES for evidence in pooled):
        yield (
            f"Means over fewer than {MIN_SITES} sites speak of just these sites; "
            "other sites may differ."
        )
    yield from _sharing_notes(pooled)


def _sharing_notes(pooled: Iterable[VerdictEvidence]) -> Iterator[str]:
    sharing: dict[str, set[str]] = {}
    for host, sites in chain.from_iterable(evidence.shared_hosts.items() for evidence in pooled):
        sharing.setdefault(host, set()).update(sites)
    for host, names in sorted(sharing.items()):
        *earlier_names, last = sorted(names)
        yield (
            f"One host, {host}, measured for {', '.join(earlier_names)} and {last}: they are not independent and "
            f"count as one site, of which a claim about sites in general needs {MIN_SITES}."
        )


def _exclusion_notes(series: Sequence[VerdictRow]) -> Iterator[str]:
    if short := [row for row in series if row.verdict == Verdict.TOO_LITTLE]:
        remedies = "; ".join(dict.fromkeys(row.evidence.remedy for row in short))
        yield (
            f"Too little read: less than {MIN_CPU_S:g} s of CPU per side in a job, or "
            f"{MIN_LAUNCH_CPU_S:g} s in a launch, is mostly clock steps and start-up, and enters no "
            f"verdict; {remedies}."
        )
    if any(THROUGH_BASE in row.evidence.test for row in series):
        yield (
            "Through the base: no launch holds both values, since paired mode launches each with the "
            "first value of the axis. Effects are differences of two launches' ratios and as noisy "
            "as both; compare with the first value, or submit these two alone, for a sharper answer."
        )
    if any(row.evidence.unpaired for row in series):
        yield (
            "Unpaired: no job holds both sides, so separate jobs are compared (Welch's t on ln of "
            "the jobs' values). Other nodes and other times are part of such an effect."
        )


def control_notes(controls: Iterable[ControlCheck]) -> Iterator[str]:
    """Describe the A/A launches of the compared jobs, in which nothing differs."""
    for index, check in enumerate(controls):
        launches = f"{check.launches} A/A launches" if check.launches > 1 else "1 A/A launch"
        difference = f"{title_metric(check.metric)} {format_effect(check.mean)} in {launches}"
        if check.sd is not None:
            difference += f" (standard deviation {100 * check.sd:.1f} %)"
        if check.is_off:
            yield (
                f"Controls are off: {difference}, although nothing differs in them. "
                "There is no verdict on it; repeat the campaign on quieter nodes."
            )
        else:
            yield f"Controls are {'in order' if check.is_in_order else 'inconclusive'}: {difference}."
        if check.sharing and index == 0:
            yield (
                f"In {check.sharing} of {launches} programs ran from physical pages that all launches "
                "share (own_text_bytes is 0): what these pages cost, up to 1 %, stays the same until they "
                "are evicted, and is not part of the interval."
            )


def _remedy_notes(series: Sequence[VerdictRow]) -> Iterator[str]:
    verdicts_by_remedy: dict[str, list[str]] = {}
    for row in series:
        if row.evidence.remedy and row.verdict not in _EXPLAINED:
            verdicts = verdicts_by_remedy.setdefault(row.evidence.remedy, [])
            verdicts += [row.verdict] if row.verdict not in verdicts else []
    for remedy, verdicts in verdicts_by_remedy.items():
        verdicts_text = " or ".join(verdicts)
        yield f"{verdicts_text[0].upper()}{verdicts_text[1:]}: {remedy}."


def _left_out_notes(series: Sequence[VerdictRow]) -> Iterator[str]:
    left_out: Counter[str] = Counter()
    for row in series:
        left_out.update(row.evidence.left_out if row.metric == series[0].metric else {})
    if left_out:
        counts = ", ".join(f"{count:,} × {reason}" for reason, count in sorted(left_out.items()))
        yield f"Left out of the comparison: {counts}."


def _reading_notes(rows: Sequence[VerdictRow]) -> Iterator[str]:
    """Explain how to read effects, intervals and times."""
    first = rows[0].evidence
    unit = first.counted
    yield (
        "Effects are means of ln(B/A), shown in per cent; within "
        f"{format_delta(first.delta)} they count as none. Of the claims of each kind, at most "
        "5 % are expected to be wrong; over sites, at most 5 % of comparisons have a wrong one. A row's "
        "interval is the one at which its claim was judged, 95 % alone where none was."
    )
    if first.looks > 1:
        yield (
            f"The campaign ends as soon as it is decided, after at most {first.looks} looks: this one is "
            f"judged at {100 * ALPHA * first.look_share:.3g} % instead of {100 * ALPHA:g} %, so that all of "
            f"them together keep the {100 * ALPHA:g} %."
        )
    names = " or ".join(dict.fromkeys(row.metric for row in rows))
    values = "Times" if rows[0].metric in METRIC_TITLES else "Values"
    yield (
        f"{values} of either side are as measured: the mean over {unit}s of each {unit}'s mean of the "
        f"exported {names}. The change is the mean of ln(B/A) "
        f"{'of these' if first.unpaired else 'in pairs within'} {unit}s, each host counting once, "
        "and need not equal the ratio of the sides."
    )


def _build_notes(rows: Sequence[VerdictRow]) -> Iterator[str]:
    series = [row.evidence for row in rows if row.verdict not in ONE_SIDED_VERDICTS]
    verdicts = {row.verdict for row in rows}
    if Verdict.BUILD_DIFFERS in verdicts:
        differences = _collect_texts(evidence.build for evidence in series)
        yield (
            f"Build differs ({'; '.join(differences)}): by more than version and commit, "
            "so nothing is credited to the compared value."
        )
    if Verdict.OTHER_CONTENT in verdicts:
        yield (
            "Other content: the datasets hold different values, so figures per event describe "
            "different work, and no change counts as a regression."
        )


def _harmless_notes(series: Sequence[VerdictRow]) -> Iterator[str]:
    two_sided = [row.evidence for row in series if row.verdict not in ONE_SIDED_VERDICTS]
    for name, sentence in _BUILD_SENTENCES.items():
        if texts := _collect_texts(getattr(evidence, name) for evidence in two_sided):
            yield sentence.format("; ".join(texts))


def _collect_texts(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Collect the distinct texts of some lists in their order."""
    return tuple(dict.fromkeys(chain.from_iterable(lists)))


def _differ_in_servers(series: Sequence[VerdictRow]) -> bool:
    sides = ((row.evidence.servers_a, row.evidence.servers_b) for row in series)
    return len({_collect_texts(side) for side in zip(*sides, strict=True)}) > 1


def _server_notes(series: Sequence[VerdictRow]) -> Iterator[str]:
    """Name the versions of the storage servers, which are context and may change within a series."""
    versions_a = [row.evidence.servers_a for row in series]
    versions_b = [row.evidence.servers_b for row in series]
    sides = [_collect_texts(versions_a), _collect_texts(versions_b)]
    if not any(sides) or series[0].axis == SERVER_AXIS:
        return
    if sides[0] == sides[1]:
        yield f"Storage servers of both sides: {', '.join(sides[0])}."
    else:
        texts = (
            f"{side} {', '.join(versions) or 'unknown'}"
            for side, versions in zip((series[0].a, series[0].b), sides, strict=True)
        )
        yield f"Storage servers: {'; '.join(texts)}."
    if max(map(len, (*versions_a, *versions_b))) > 1:
        yield (
            "Servers changed within series, so effects mix their versions; choose one with --where "
            "'server_version=…', or compare the versions with --axis server_version."
        )
