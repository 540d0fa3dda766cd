"""Parameters and filters of Compare, and lookup or computation of the comparison they describe."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import Field

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.compared_sides import ComparedSides
from treehammer.analysis.comparison.series_changes import SAME, CounterChange
from treehammer.analysis.statistics.sample import (
    SELECTION_AXIS,
    natural_sort_key,
    parse_variant,
    possible_values,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.record.value_checks import is_variant
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.model import COMMIT_AXIS, RELEASE_AXIS, format_scalar
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.query_model import Selection, parse_alternatives
from treehammer.sql.write.store import Store
from treehammer.web.addresses import link_to, link_to_same_page
from treehammer.web.page_query import ALTERNATIVES, CAMPAIGNS, Conditions, PageQuery, Text
from treehammer.web.sections import Badge, Link

Filtered = TypeVar("Filtered", VerdictRow, CounterChange)


class VerdictFilter(PageQuery):
    """Values that shown rows must have; '' for any."""

    verdict: Text = Field("", description="Only rows with this verdict.")
    metric: Text = Field("", description="Only this headline metric or exact counter.")
    site: Text = Field("", description="Only this site.")
    variant: Text = Field("", description="Only the variant with this label.")

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
    verdict_filter: VerdictFilter, rows: Sequence[VerdictRow], changes: Sequence[CounterChange]
) -> Mapping[str, list[Link]]:
    """List metrics and verdicts to choose from, and the filters by site and variant to remove."""

    def choose(name: str, value: str, title: str) -> Link:
        address = link_to_same_page(**{name: value or None, "page": None})
        return Link(title, address, is_current=getattr(verdict_filter, name) == value)

    changed = dict.fromkeys(change.metric for change in changes if change.verdict != SAME)
    metrics = {
        metric: verdict_text.title_metric(metric).replace("_", " ")
        for metric in [*verdict_text.list_metrics(rows), *changed]
    }
    counts = Counter(row.verdict for row in rows if row.site)
    verdicts = {verdict: f"{verdict} ({count:,})" for verdict, count in counts.most_common()}
    choices = {"metric": metrics, "verdict": verdicts}
    return {
        name: [
            choose(name, value, title) for value, title in {"": f"all {name}s", **titles}.items()
        ]
        for name, titles in choices.items()
    } | {"remove": [*_list_removals(verdict_filter)]}


def _list_removals(verdict_filter: VerdictFilter) -> Iterator[Link]:
    """Link to the page without the filter by site, or by variant."""
    for name, value in (("site", verdict_filter.site), ("variant", verdict_filter.variant)):
        if value:
            address = link_to_same_page(**{name: None})
            yield Link(Badge(f"{name} {value} ✕"), address, f"Remove the filter {name} {value}")


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
    def sides(self) -> ComparedSides:
        """What is compared; invalid conditions are refused."""
        alone = parse_alternatives(self.conditions_a), parse_alternatives(self.conditions_b)
        return ComparedSides(self.axis, self.a, self.b, self.delta, self.selection, alone)

    @property
    def compare_command(self) -> str:
        """Command that makes and stores the same comparison; '' if none does."""
        own_sides = self.axis == SELECTION_AXIS or any(self.sides.conditions)
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


#: Axis -> dimension and column that have its values; others are of the variant or of the subject.
_RECORDED_AXES = {
    "server_version": ("storage", "server_version"),
    "origin_version": ("storage", "origin_version"),
    "cache_block_kib": ("storage", "cache_block_kib"),
    "architecture": ("node", "architecture"),
    COMMIT_AXIS: ("origin", "commit_id"),
}
_SUBJECT_AXES = ("site", "storage_site", "door", "dataset")
#: Axes that change the work itself, here of reads and of loads, so that their values are not compared.
_WORK_AXES = ("branches", "events", RELEASE_AXIS, "clients", "rate_hz", "reads", "direction")


@dataclass(frozen=True)
class MeasuredAxes:
    """Axes with their measured values, sorted."""

    values: Mapping[str, Sequence[str]]

    @classmethod
    def load(cls, store: Store) -> MeasuredAxes:
        """Load the axes of all variants, and those of site, storage, node and campaign."""
        names = ("variant", "axis_root", *_SUBJECT_AXES)
        texts_by_column = overview_queries.list_values_by_column(store, names)
        values = {RELEASE_AXIS: {*texts_by_column.pop("axis_root")} - {""}}
        for variant in filter(is_variant, texts_by_column.pop("variant")):
            for axis, value in parse_variant(variant).values:
                values.setdefault(axis, set()).add(format_scalar(value))
        values |= {name: set(texts) - {""} for name, texts in texts_by_column.items()}
        for axis, place in _RECORDED_AXES.items():
            values[axis] = set(overview_queries.list_dimension_values(store, *place))
        values["campaign"] = {item.id for item in campaign_queries.list_newest_campaigns(store, 2)}
        return cls(
            # TTrees are the base of other formats; an address cannot hold an empty value.
            {
                axis: sorted(named, key=lambda text: (text != "ttree", natural_sort_key(text)))
                for axis, texts in values.items()
                if (named := texts - {""})
            }
        )

    @property
    def comparable(self) -> list[str]:
        """Axes with several values, and the comparison of two selections."""
        return [*(axis for axis, texts in self.values.items() if len(texts) > 1), SELECTION_AXIS]

    def require(self, query: CompareQuery) -> None:
        """Refuse an axis or a side that was never measured, before measurements are read.

        Raises:
            NothingToDoError: nothing was measured with it.
        """
        if query.axis == SELECTION_AXIS:
            return
        values = self.values.get(query.axis)
        if not self.values.keys() - {"campaign"}:
            raise NothingToDoError("there are no measurements yet")
        if values is None:
            raise NothingToDoError(
                f"no measurement has the axis {query.axis}",
                hint=f"{suggest_word(query.axis, self.comparable)}"
                f"Axes with several values: {', '.join(self.comparable)}.",
            )
        if query.axis in ("campaign", COMMIT_AXIS):  # by name, or by the beginning of a hash
            return
        for side in (query.a, query.b):
            if not any(matches_text(side, value) for value in values):
                raise NothingToDoError(
                    f"no measurement has {query.axis}={side}",
                    hint=f"Values present: {', '.join(values)}.",
                )

    def list_settings(self) -> Iterator[Link]:
        """Link to comparisons of the settings of tests that were measured with several values."""
        excluded = (*_RECORDED_AXES, *_SUBJECT_AXES, *_WORK_AXES, "campaign", SELECTION_AXIS)
        for axis in (axis for axis in self.comparable if axis not in excluded):
            values = self.values[axis]
            for value in values[1:]:
                query = {"axis": axis, "a": values[0], "b": value}
                yield Link(f"{axis}: {value} against {values[0]}", link_to("compare", query=query))

    @property
    def missing_text(self) -> str:
        """Say which settings were measured with one value only, so that nothing can be compared."""
        if not self.values.get(RELEASE_AXIS):
            return ""
        first = {axis: values[0] for axis, values in self.values.items()}
        first = {"cache_mb": "none", "format": "ttree", **first}
        single = [
            f"{axis} ({first[axis]})"
            for axis in ("cache_mb", "format", "access", "cache", "threads")
            if axis in first and axis not in self.comparable
        ]
        if not single:
            return ""
        return (
            f"Measured with one value only, so that nothing can be said: {', '.join(single)}. Give two "
            "in one campaign, as in -P cache_mb=0,30."
        )


def matches_text(text: str, value: str) -> bool:
    """Return whether a typed value means a measured one: numbers compare as numbers."""
    try:
        is_truth = value in ("true", "false")
        return text == value or (is_truth and text.lower() == value) or float(text) == float(value)
    except ValueError:
        return False


def load_stored_verdicts(store: Store, query: CompareQuery) -> list[VerdictRow]:
    """Return the verdicts stored for the same comparison; empty if there are none."""
    if not query.compare_command:
        return []
    for a, b in itertools.product(possible_values(query.a), possible_values(query.b)):
        if a == b and query.a != query.b:
            continue  # different texts such as 6.4 and 6.40, but equal numbers
        if rows := store.verdicts(query.sides.make_query(a, b).id):
            return rows
    return []
