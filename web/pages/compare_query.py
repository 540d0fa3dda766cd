"""Parameters and filters of Compare, and lookup or computation of the comparison they describe."""

from __future__ import annotations

import itertools
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison_result import add_changes, add_setups, find_measured
from treehammer.analysis.comparison.series_changes import (
    DETAIL_COLUMNS,
    SAME,
    CounterChange,
    DetailedSample,
)
from treehammer.analysis.statistics.headline_rows import load_earlier_checksums, load_headline_rows
from treehammer.analysis.statistics.sample import (
    SELECTION_AXIS,
    Sample,
    find_axis_value,
    possible_values,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, Verdict
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries, figure_sql
from treehammer.sql.read.query_model import (
    ALL_MEASUREMENTS,
    Condition,
    FigureQuery,
    Selection,
    parse_alternatives,
)
from treehammer.sql.write.store import Store
from treehammer.web.addresses import link_to_same_page
from treehammer.web.page_query import ALTERNATIVES, CAMPAIGNS, Conditions, PageQuery, Text
from treehammer.web.sections import Badge, Link

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison, ComparisonQuery

Filtered = TypeVar("Filtered", VerdictRow, CounterChange)
#: Maximum number of measurements read by a comparison computed on request.
MAX_READ = 30_000
#: Compared axis -> locations that a series still has; all other axes keep site and door.
_SERIES_LOCATIONS = {"site": (), "storage_site": ("site",), "door": ("site",)}


class VerdictFilter(PageQuery):
    """Values that shown rows must have; '' for any."""

    verdict: Text = Field("", description="Only rows with this verdict.")
    metric: Text = Field("", description="Only this headline metric or exact counter.")
    site: Text = Field("", description="Only this site.")
    variant: Text = Field("", description="Only the variant with this label.")

    @property
    def is_one_cell(self) -> bool:
        """Whether a single site and variant are shown."""
        return bool(self.site and self.variant)

    def select(self, rows: Iterable[Filtered], *, any_metric: bool = False) -> list[Filtered]:
        """Select the rows that pass, optionally regardless of their metric."""
        metric = "" if any_metric else self.metric
        columns = {"metric": metric, "verdict": self.verdict}
        columns |= {"site": self.site, "label": self.variant}
        filters = {name: value for name, value in columns.items() if value}
        return [
            row
            for row in rows
            if all(getattr(row, name) == value for name, value in filters.items())
        ]


def list_filter_choices(
    chosen: VerdictFilter,
    rows: Sequence[VerdictRow],
    changes: Sequence[CounterChange],
) -> Mapping[str, list[Link]]:
    """List metrics and verdicts to choose from, and the filters by site and variant to remove."""

    def choose(name: str, value: str, title: str) -> Link:
        address = link_to_same_page(**{name: value or None, "page": None})
        return Link(title, address, is_current=getattr(chosen, name) == value)

    changed = dict.fromkeys(change.metric for change in changes if change.verdict != SAME)
    metrics = {
        metric: verdict_text.title_metric(metric).replace("_", " ")
        for metric in [*verdict_text.list_metrics(rows), *changed]
    }
    counts = Counter(row.verdict for row in rows if row.site)
    verdicts = {verdict: f"{verdict} ({count})" for verdict, count in counts.most_common()}
    choices = {"metric": metrics, "verdict": verdicts}
    return {
        name: [
            choose(name, value, title) for value, title in {"": f"all {name}s", **titles}.items()
        ]
        for name, titles in choices.items()
    } | {
        "remove": [
            Link(
                Badge(f"{name} {value} ✕"),
                link_to_same_page(**{name: None}),
                f"Remove the filter {name} {value}",
            )
            for name, value in (("site", chosen.site), ("variant", chosen.variant))
            if value
        ],
    }


class CompareQuery(PageQuery):
    """Parameters of a comparison that is found or computed."""

    other_parameters = ("page", "recompute", *VerdictFilter.model_fields)

    a: Text = Field("", description="Value of the axis on side A, the reference.")
    b: Text = Field("", description="Value of the axis on side B.")
    axis: Text = Field("root", description="Axis, by default root; or selection.")
    campaigns: tuple[Text, ...] = CAMPAIGNS
    conditions: Conditions = Field(
        (),
        alias="where",
        description=f"A condition on both sides, as COLUMN=VALUE; {ALTERNATIVES}.",
    )
    conditions_a: Conditions = Field(
        (), alias="where_a", description=f"A condition on A alone; {ALTERNATIVES}."
    )
    conditions_b: Conditions = Field(
        (), alias="where_b", description=f"A condition on B alone; {ALTERNATIVES}."
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        DEFAULT_DELTA,
        description="Relevance limit in ln, between 0 and 1, by default 0.02: smaller effects count "
        "as none.",
    )

    def resolve(self, store: Store) -> CompareQuery:
        """Return the query with the identities of its campaigns; unknown ones are refused."""
        sides = {"a": self.a.strip(), "b": self.b.strip()}
        if self.axis == "campaign":
            sides |= {
                name: campaign_queries.resolve_campaign(store, side)
                for name, side in sides.items()
                if side
            }
        ids = tuple(dict.fromkeys(store.campaign(campaign).id for campaign in self.campaigns))
        return self.model_copy(update={**sides, "campaigns": ids})

    @property
    def has_side(self) -> bool:
        """Whether the URL describes at least one side."""
        return bool(self.a or self.b or self.conditions_a or self.conditions_b)

    def require_both_sides(self) -> None:
        """Refuse a query without one of its sides."""
        if self.axis == SELECTION_AXIS:
            if not self.conditions_a and not self.conditions_b:
                raise ConfigError(
                    "the axis selection compares two selections, not A and B",
                    hint="Give conditions for either side: where_a, where_b or both.",
                )
            return
        missing = [name for name, value in (("A", self.a), ("B", self.b)) if not value]
        if missing:
            raise ConfigError(
                f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing",
                hint=f"Give two values of the axis {self.axis}; to compare two selections, choose the "
                f"axis {SELECTION_AXIS}.",
            )

    @property
    def selection(self) -> Selection:
        """Measurements of both sides; invalid conditions are refused."""
        return Selection(self.campaigns, parse_alternatives(self.conditions))

    @property
    def sides(self) -> tuple[tuple[Condition, ...], tuple[Condition, ...]]:
        """Conditions of either side alone; invalid ones are refused."""
        return parse_alternatives(self.conditions_a), parse_alternatives(self.conditions_b)

    @property
    def compare_command(self) -> str:
        """Command that makes and stores the same comparison; '' if none does."""
        own_sides = self.axis == SELECTION_AXIS or self.conditions_a or self.conditions_b
        many_values = any(len(condition.values) > 1 for condition in self.selection.conditions)
        if own_sides or many_values or len(self.campaigns) > 1:
            return ""
        words = ["treehammer", "compare", self.a, self.b]
        words += ["--axis", self.axis] if self.axis != "root" else []
        words += ["--delta", f"{self.delta:g}"] if self.delta != DEFAULT_DELTA else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        for condition in self.conditions:
            words += ["--where", condition]
        return shlex.join(words)


def load_stored_verdicts(store: Store, query: CompareQuery) -> list[VerdictRow]:
    """Return the verdicts stored for the same comparison; empty if there are none."""
    if not query.compare_command:
        return []
    from treehammer.analysis.comparison.comparison import ComparisonQuery

    for a, b in itertools.product(possible_values(query.a), possible_values(query.b)):
        if a == b and query.a != query.b:
            continue  # different texts such as 6.4 and 6.40, but equal numbers
        comparison_query = ComparisonQuery(query.axis, a, b, query.delta, query.selection)
        if rows := store.verdicts(comparison_query.id):
            return rows
    return []


class TooManyMeasurementsError(ConfigError):
    """A comparison would read too much for one request: up to ``count`` measurements."""

    def __init__(self, count: int) -> None:
        super().__init__(f"this comparison would read up to {count:,} measurements")
        self.count = count


def compare_now(
    store: Store,
    query: CompareQuery,
    *,
    max_read: int | None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Compute a comparison without storing it.

    ``on_progress`` is called with the number of measurements read, now and then.

    Raises:
        TooManyMeasurementsError: it would read more than ``max_read`` measurements.
        ConfigError: a parameter is invalid.
        NothingToDoError: a side has no measurements, or nothing is comparable.
    """
    from treehammer.analysis.comparison.comparison import compare_samples

    selections = _list_selections(query)
    _require_few_measurements(store, selections, max_read)
    loaded: list[list[DetailedSample]] = []
    for selection in selections:

        def report(read: int, before: int = sum(map(len, loaded))) -> None:
            on_progress(before + read)

        loaded.append(_load_samples(store, selection, report))
    if query.axis == COMMIT_AXIS:
        loaded = [add_setups(store, side) for side in loaded]
    label_sides = _label_by_selection if query.axis == SELECTION_AXIS else _select_by_value
    comparison_query, detailed = label_sides(query, loaded)
    samples = [item.sample for item in detailed]
    comparison = compare_samples(samples, comparison_query, now_us=time.time_ns() // 1000)
    verdicts = {row.verdict for row in comparison.of_series}
    if verdicts <= {Verdict.ONLY_IN_A, Verdict.ONLY_IN_B}:
        _require_other_axis(comparison_query, samples)
    return add_changes(comparison, detailed).comparison


def _list_selections(query: CompareQuery) -> list[Selection]:
    """List the selections of both sides; a single one if the sides are values of an axis."""
    both = query.selection
    sides = [
        replace(both, conditions=(*both.conditions, *side_conditions))
        for side_conditions in query.sides
    ]
    if query.axis == SELECTION_AXIS and sides[0] == sides[1]:
        raise ConfigError(
            "both sides select the same measurements", hint="Give different conditions."
        )
    return list(dict.fromkeys(sides))


def _label_by_selection(
    query: CompareQuery, loaded: Sequence[Sequence[DetailedSample]]
) -> tuple[ComparisonQuery, list[DetailedSample]]:
    """Label the samples of either selection with its conditions."""
    names = [" and ".join(map(str, side)) or "all" for side in query.sides]
    labeled = [
        replace(item, sample=replace(item.sample, side=name))
        for name, side in zip(names, loaded, strict=True)
        for item in side
    ]
    return _build_question(query, *names), labeled


def _select_by_value(
    query: CompareQuery, loaded: Sequence[Sequence[DetailedSample]]
) -> tuple[ComparisonQuery, list[DetailedSample]]:
    """Take from either side's samples those with its value of the axis."""
    a, b = (
        _find_side_value(query.axis, text, [item.sample for item in side])
        for text, side in ((query.a, loaded[0]), (query.b, loaded[-1]))
    )
    comparison_query = _build_question(query, a, b)
    if len(loaded) == 1:
        return comparison_query, list(loaded[0])
    sides = zip(loaded, (a, b), strict=True)
    return comparison_query, [
        item
        for side, value in sides
        for item in side
        if item.sample.axis_value(query.axis) == value
    ]


def _find_side_value(axis: str, text: str, samples: Sequence[Sample]) -> Any:
    """Find the value that a text means; a commit may be abbreviated."""
    if axis == COMMIT_AXIS:
        measured = {commit for sample in samples if (commit := sample.commit)}
        text = find_measured(text, measured) or text
    return find_axis_value(samples, axis, text)


def _require_other_axis(comparison_query: ComparisonQuery, samples: Sequence[Sample]) -> None:
    """Refuse sides whose conditions select different sites or doors: a series has one of each."""
    a, b = (
        [sample for sample in samples if sample.axis_value(comparison_query.axis) == value]
        for value in (comparison_query.a, comparison_query.b)
    )
    sides = comparison_query.where_a, comparison_query.where_b
    for column in _SERIES_LOCATIONS.get(comparison_query.axis, ("site", "door")):
        where_a, where_b = (
            {condition for condition in side if condition.column == column} for side in sides
        )
        is_selected = where_a and where_b and where_a != where_b
        if is_selected and {*map(attrgetter(column), a)}.isdisjoint(map(attrgetter(column), b)):
            raise ConfigError(
                f"no series is on both sides, as each series has a single {column}",
                hint=f"To compare two {column}s, choose the axis {column} and give them as A and B.",
            )


def _build_question(query: CompareQuery, a: Any, b: Any) -> ComparisonQuery:
    from treehammer.analysis.comparison.comparison import ComparisonQuery

    return ComparisonQuery(query.axis, a, b, query.delta, query.selection, *query.sides)


def _require_few_measurements(
    store: Store, selections: Sequence[Selection], max_read: int | None
) -> None:
    if max_read is None:
        return
    with store.connection() as connection:
        count = sum(
            figure_sql.estimate_max_measurements(
                connection, FigureQuery(selection=selection, kind=None)
            )
            for selection in selections
        )
    if count > max_read:
        raise TooManyMeasurementsError(count)


def _load_samples(
    store: Store, selection: Selection, on_progress: Callable[[int], None]
) -> list[DetailedSample]:
    try:
        rows = load_headline_rows(store, selection, DETAIL_COLUMNS, on_progress)
        rows += load_earlier_checksums(store, rows, DETAIL_COLUMNS)
        samples = [DetailedSample.from_row(row) for row in rows]
    except (ValueError, AttributeError) as error:
        # Measurements uploaded by other programs may hold any text.
        raise ConfigError(
            f"the variant of a measurement is not a JSON object ({error})",
            hint="Exclude such measurements with a condition.",
        ) from error
    if not samples and selection == ALL_MEASUREMENTS:
        raise NothingToDoError("there are no measurements yet")
    if not samples:
        raise NothingToDoError(f"no measurements match {selection}")
    return samples
