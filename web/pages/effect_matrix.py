"""Heat maps of comparisons: variants by sites, and pairs of ROOT releases by test."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.conclusion import name_scopes, select_compared, select_headline
from treehammer.analysis.statistics.metric_units import format_metric
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, natural_sort_key
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS, OPEN_VERDICTS, Verdict
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.stored_comparisons import (
    ReleaseComparison,
    ReleaseEffect,
    list_release_comparisons,
)
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import write_minus
from treehammer.web.addresses import link_to
from treehammer.web.columns import HeatCell

#: Heading of the column over all sites.
ALL_SITES = "all sites"
#: Effects (in ln) from which a color is darker.
_STEPS = (0.03, 0.1)
#: Uncertain effects (in ln) from which a cell is tinted.
_LEAST_PALE = 0.01
#: Largest effect written in a cell; the tooltip has all.
_MAX_WRITTEN = math.log(2)
_CERTAIN_TONES = ("worse", "better")
#: Verdicts whose effects are tinted, if there are any.
_TINTED_VERDICTS = (*OPEN_VERDICTS, Verdict.NOT_ENOUGH)
#: Class -> meaning, as the legend explains it.
MATRIX_LEGEND: Mapping[str, str] = {
    "worse-2": "slower or worse",
    "better-2": "faster or better",
    "equal": "same",
    "pale worse-1": "undecided, slower so far",
    "pale better-1": "… faster so far",
    "missing": "not compared",
}
#: Returns the address of the page with filters; '' for those to remove.
LinkFilter = Callable[[str, str], str]
_NOT_COMPARED = HeatCell("", "not compared", "absent")
#: Metric whose verdicts are shown.
METRIC = HEADLINE_METRICS[0]


def draw_column(key: str, title: str, address: str = "") -> TableColumn:
    """Make a column of cells whose colors are effects; the address is that of its own page."""
    return TableColumn(
        key,
        title,
        address=address,
        tooltip=title,
        css_class=lambda row: row[key].css_class,
        cell_tooltip=lambda row: row[key].description,
        draw=lambda row: row[key],
    )


class _CellEffect(NamedTuple):
    """Change of a metric of one variant at one site; the site is '' over all sites.

    ``tone`` is worse, better, equal, open (undecided) or missing (not compared).
    """

    label: str
    site: str
    tone: str
    effect: float | None
    description: str

    @property
    def number(self) -> float:
        """Effect, 0 if unknown."""
        return self.effect or 0.0

    @property
    def is_certain(self) -> bool:
        return self.tone in _CERTAIN_TONES

    @property
    def weight(self) -> tuple[bool, float]:
        """Sort key of several series in one cell: certain effects first, large ones first."""
        return self.is_certain, abs(self.number)

    @property
    def css_class(self) -> str:
        size = abs(self.number)
        if self.tone == "open" and size >= _LEAST_PALE:
            return f"pale {'worse' if self.number > 0 else 'better'}-1"
        if not self.is_certain:
            return self.tone
        return f"{self.tone}-{1 + sum(size >= step for step in _STEPS)}"

    @property
    def text(self) -> str:
        if self.effect is None or self.tone == "missing":
            return "–"
        if abs(self.effect) > _MAX_WRITTEN:
            return "≫" if self.effect > 0 else "≪"
        change = round(100 * math.expm1(self.effect))
        return write_minus(f"{change:+d}") if change else "0"


def matrix_of_verdicts(rows: Sequence[VerdictRow], link: LinkFilter) -> DataTable | None:
    """Build the matrix of the first metric of some verdicts; None for a single cell."""
    metric = next(iter(verdict_text.list_metrics(rows)), "")
    effects = [
        _CellEffect(row.label, row.site, _find_tone(row), row.effect, _describe_row(row))
        for row in rows
        if row.metric == metric
    ]
    return _build_matrix(verdict_text.title_metric(metric), effects, link)


def _find_tone(row: VerdictRow) -> str:
    if row.verdict in CERTAIN_VERDICTS:
        return "worse" if row.verdict == Verdict.SLOWER else "better"
    if row.verdict == Verdict.SAME:
        return "equal"
    return "open" if row.effect is not None and row.verdict in _TINTED_VERDICTS else "missing"


def _describe_row(row: VerdictRow) -> str:
    words = [verdict_text.format_verdict(row)]
    if row.effect is not None:
        words.append(verdict_text.format_effect(row.effect))
    if interval := verdict_text.format_interval(row):
        words.append(f"({interval})")
    evidence = row.evidence
    if evidence.a_value is not None and evidence.b_value is not None:
        before, after = (
            format_metric(row.metric, value, evidence.unit)
            for value in (evidence.a_value, evidence.b_value)
        )
        words.append(f"from {before} to {after}")
    return " ".join(words)


def _build_matrix(
    metric: str, effects: Sequence[_CellEffect], link: LinkFilter
) -> DataTable | None:
    series: dict[tuple[str, str], list[_CellEffect]] = defaultdict(list)
    for effect in effects:
        series[effect.label, effect.site].append(effect)
    if len(series) < 2:
        return None
    labels, sites = _sort_heads(effects)
    keys = {site: f"site:{site or ALL_SITES}" for site in sites}
    columns = (
        TableColumn(
            "variant",
            "variant",
            verdict_text.describe_variant,
            link=lambda row: link("", row["variant"]),
            cell_tooltip=lambda row: row["variant"],
        ),
        *(
            draw_column(key, site or ALL_SITES, link(site, "") if site else "")
            for site, key in keys.items()
        ),
    )
    cells = {
        (label, keys[site]): _build_cell(label, site, series.get((label, site), ()), link)
        for label in labels
        for site in sites
    }
    caption = f"Change of {metric} by variant and site, per cent"
    return _fill_matrix("matrix", caption, columns, labels, cells, "effects-by-site")


def _sort_heads(effects: Sequence[_CellEffect]) -> tuple[list[str], list[str]]:
    """Sort variants by their mean certain effect, and sites, the slowest first after all sites."""
    certain: dict[str, list[float]] = defaultdict(list)
    by_site: dict[str, list[float]] = defaultdict(list)
    for effect in effects:
        certain[effect.label] += [effect.number] if effect.is_certain else []
        by_site[effect.site].append(effect.number)
    labels = sorted(
        certain, key=lambda label: (-abs(fmean(certain[label] or (0.0,))), natural_sort_key(label))
    )
    return labels, sorted(by_site, key=lambda site: (bool(site), -fmean(by_site[site]), site))


def _fill_matrix(
    name: str,
    caption: str,
    columns: tuple[TableColumn, ...],
    heads: Sequence[str],
    cells: Mapping[tuple[str, str], HeatCell],
    look: str,
) -> DataTable:
    """Build the table of cells by the head of their row and the key of their column."""
    head, *keys = (column.key for column in columns)
    rows = [
        {head: text, **{key: cells.get((text, key), _NOT_COMPARED) for key in keys}}
        for text in heads
    ]
    return DataTable(
        name, caption, columns, rows, is_arrangeable=False, is_exported=False, look=f"matrix {look}"
    )


def _build_cell(label: str, site: str, series: Sequence[_CellEffect], link: LinkFilter) -> HeatCell:
    if not series:
        return HeatCell("", f"{label}, {site or ALL_SITES}: not measured", "absent")
    largest = max(series, key=lambda effect: effect.weight)
    note = f"; the largest of {len(series):,} series" if len(series) > 1 else ""
    return HeatCell(
        largest.text,
        f"{label}, {site or ALL_SITES}: {largest.description}{note}",
        largest.css_class,
        f"{link(site, label)}#cell" if site else "",
    )


def load_release_matrices(store: Store) -> list[DataTable]:
    """Load the matrix of each test, in order of the tests' names; tests with a single pair have none.

    Bases are rows, other releases columns; the cell of a pair that was not compared is empty.
    """
    by_test: dict[str, list[ReleaseComparison]] = {}
    for comparison in list_release_comparisons(store, METRIC):
        by_test.setdefault(comparison.test, []).append(comparison)
    return [
        _build_release_matrix(test, comparisons)
        for test, comparisons in sorted(by_test.items())
        if len(comparisons) > 1
    ]


def _build_release_matrix(test: str, comparisons: Sequence[ReleaseComparison]) -> DataTable:
    cells = {
        (comparison.a, f"root:{comparison.b}"): _build_release_cell(comparison)
        for comparison in comparisons
    }
    bases = sorted({comparison.a for comparison in comparisons}, key=natural_sort_key)
    releases = sorted({comparison.b for comparison in comparisons}, key=natural_sort_key)
    columns = (
        TableColumn("base", "compared with"),
        *(draw_column(f"root:{release}", release) for release in releases),
    )
    name = test or "several tests"
    return _fill_matrix(f"releases:{name}", name, columns, bases, cells, "releases")


def _build_release_cell(comparison: ReleaseComparison) -> HeatCell:
    effects = select_headline(comparison.effects)
    counts = Counter(effect.verdict for effect in effects)
    compared = select_compared(effects)
    verdicts = {effect.verdict for effect in compared}
    parts = [_describe_part(verdict, compared) for verdict in CERTAIN_VERDICTS if counts[verdict]]
    # Without a certain verdict, the only one, or that there are several.
    several = "undecided" if any(Verdict(v).is_statistical for v in verdicts) else "no verdict"
    text = ", ".join(parts) or (min(verdicts) if len(verdicts) == 1 else several)
    # Databases return rows in any order: equally frequent verdicts keep the order of the enumeration.
    frequent = sorted(filter(counts.get, Verdict), key=lambda verdict: -counts[verdict])
    words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in frequent)
    words = " ".join([words or "no verdicts", *name_scopes(effects)])
    description = f"{comparison.b} against {comparison.a}: {words}"
    address = link_to("comparison", comparison=comparison.comparison_id)
    return HeatCell(text, description, _choose_css_class(verdicts), address)


def _choose_css_class(verdicts: set[str]) -> str:
    if Verdict.SLOWER in verdicts:
        return "worse-2"
    if Verdict.FASTER in verdicts:
        return "better-2"
    return "equal" if verdicts == {Verdict.SAME} else "open"


def _describe_part(verdict: Verdict, effects: Sequence[ReleaseEffect]) -> str:
    """Describe the variants with a certain verdict, e.g. ``+5.1 % in 4 of 24``."""
    sizes = [
        effect.effect
        for effect in effects
        if effect.verdict == verdict and effect.effect is not None
    ]
    size = f"{verdict_text.format_effect(median(sizes))} " if sizes else ""
    count = sum(effect.verdict == verdict for effect in effects)
    return f"{size}in {count:,} of {len(effects):,}"
