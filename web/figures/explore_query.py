"""Parameters of Explore's URL."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from datetime import date
from enum import StrEnum
from functools import cache
from itertools import combinations
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field

from treehammer.collectors.job_spec import EXECUTION_KINDS, TIMED
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    LONG_TEXT_METRICS,
    METRICS_BY_NAME,
)
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.read import overview_queries, query_model
from treehammer.sql.write.store import Store
from treehammer.web.display_formats import day_from_number, day_number, days_until
from treehammer.web.labels import VARIANT_COLUMN, head_column, title_column
from treehammer.web.page_query import (
    ALTERNATIVES,
    CAMPAIGNS,
    Conditions,
    DayOrBlank,
    OneOf,
    PageQuery,
    Text,
    TextOrBlank,
)

#: Parameter of the width of a file on paper.
SIZE = "size"


class View(StrEnum):
    """What a figure shows."""

    RELATIVE = "relative"
    MEANS = "means"
    HEATMAP = "heatmap"
    SORTED = "sorted"
    DISTRIBUTION = "distribution"
    LATENCY = "latency"


class Bars(StrEnum):
    """What error bars show."""

    RMS = "rms"
    INTERVAL = "interval"
    NONE = "none"


VIEWS: Mapping[str, str] = {
    View.RELATIVE: "per cent against the same work",
    View.MEANS: "means",
    View.HEATMAP: "means as heat map",
    View.SORTED: "means, sorted",
    View.DISTRIBUTION: "distributions",
    View.LATENCY: "read latency",
}
#: Kinds of figures that show a mean for each group.
MEAN_VIEWS = (View.MEANS, View.HEATMAP, View.SORTED)
BARS: Mapping[str, str] = {
    Bars.RMS: "RMS of executions",
    Bars.INTERVAL: "95 % interval over jobs",
    Bars.NONE: "none",
}
SCALES = {"linear": "fitted to the data", "zero": "from zero", "log": "logarithmic"}
#: Default window: days up to the last one with measurements.
DEFAULT_DAYS = 30
#: Columns with a list of values in the form.
FILTERS = ("site", "test_name", "dataset", "door", "axis_root", VARIANT_COLUMN)

#: Columns that conditions can compare; each is a parameter, too.
FILTER_COLUMNS = tuple(
    metric.name
    for metric in CATALOGUE
    if metric.type not in ("ints", "floats") and metric.name != "kind"
)
_NOT_PLOTTABLE = ("started_us", "ended_us", "day")
#: Numbers that can be plotted, in the catalogue's order.
METRICS = tuple(
    metric
    for metric in CATALOGUE
    if metric.type in ("int", "float")
    and metric.owner != "plan"
    and metric.name not in _NOT_PLOTTABLE
)
#: Columns that can define groups.
DIMENSIONS = (
    *query_model.TIME_UNITS,
    *(
        metric.name
        for metric in CATALOGUE
        if (metric.type in ("text", "bool") or metric.owner == "plan")
        and metric.name not in (*LONG_TEXT_METRICS, "measurement_id")
    ),
    "cores_online",
    "cores_allowed",
    "file_size_bytes",
    "exit_code",
    "exit_signal",
)


#: Column -> columns with one value for each of its values.
_IMPLIED: Mapping[str, Collection[str]] = {
    "job_id": ("campaign_id", "site"),
    "host": ("site",),
    "door": ("door_protocol", "storage_site"),
    "variant": ("variant_label",),
    "day": ("week", "month"),
}
_JOB = "job_id"
#: Columns that define the work, of which each value is compared with itself.
_WORK_COLUMNS = ("test_name", VARIANT_COLUMN, "variant_label", "dataset", "dataset_hash")
#: Entry of the form for no column.
NO_COLUMN = "none"


@cache
def _names_by_title() -> Mapping[str, str]:
    """Map titles of metrics and columns, as forms send them, to their names."""
    names = [*(metric.name for metric in METRICS), *DIMENSIONS]
    return {title_column(name).lower(): name for name in reversed(names)}


def title_choice(name: str) -> str:
    """Return the title of a metric or column in the form; its name if another one has the same."""
    title = head_column(name)
    return title if _names_by_title().get(title.lower()) == name else name


def _read_column(value: object) -> object:
    """Accept the title of a metric or column as well as its name."""
    text = str(value).strip()
    if text.lower() == NO_COLUMN:
        return ""
    return _names_by_title().get(text.lower(), value)


ColumnName = Annotated[Text, BeforeValidator(_read_column)]
ColumnOrBlank = Annotated[TextOrBlank, BeforeValidator(_read_column)]


#: Parameters of the figure, apart from those that select executions.
_FIGURE_FIELDS = {"metric", "by", "color", "panels", "view", "bars", "scale"}


class ExploreQuery(PageQuery):
    """Parameters of one figure.

    Attributes:
        filters: values of columns that the address names as parameters.
        conditions: those of ``where`` and ``filters``.
        unreadable_conditions: texts that are not valid conditions.
        separated_columns: further columns shown by color and marker.
    """

    other_parameters: ClassVar[Collection[str] | None] = (SIZE,)
    filter_columns = FILTER_COLUMNS
    #: View of an address that names no parameter of the figure.
    opening_view: ClassVar[str] = View.RELATIVE

    metric: ColumnName = Field(
        "eff_job", description="A numeric metric of the catalogue, or extra_NAME."
    )
    by: ColumnName = Field("site", description="Column on the horizontal axis.")
    color: ColumnOrBlank = Field("axis_root", description="Second grouping column; empty for none.")
    panels: ColumnOrBlank = Field("", description="Third grouping column; empty for none.")
    view: Annotated[str, OneOf(tuple(VIEWS))] = Field(
        View.MEANS,
        title="Show",
        description="Means, distributions, or histograms of read latency; by default means, and "
        "differences from the same work if no parameter of the figure is given.",
    )
    bars: Annotated[str, OneOf(tuple(BARS))] = Field(
        Bars.RMS, title="Error bars", description="Kind of error bars."
    )
    scale: Annotated[str, OneOf(tuple(SCALES))] = Field(
        "linear", description="Scale of the vertical axis of images."
    )
    kind: Annotated[str, OneOf(("", *EXECUTION_KINDS))] = Field(
        TIMED, title="Executions", description="Kind of execution; empty for all."
    )
    first: DayOrBlank = Field(
        "",
        alias="from",
        title="From",
        description="First day (UTC); empty for no bound, by default 30 days ago.",
    )
    last: DayOrBlank = Field(
        "", alias="to", title="To", description="Last day (UTC); empty for no bound."
    )
    campaigns: tuple[Text, ...] = CAMPAIGNS
    where: Conditions = Field((), description=f"A condition, as COLUMN=VALUE; {ALTERNATIVES}.")

    filters: tuple[tuple[str, Text], ...] = Field((), exclude=True)
    conditions: tuple[query_model.Condition, ...] = Field((), exclude=True)
    campaign_names: tuple[str, ...] = Field((), exclude=True)
    unreadable_conditions: tuple[str, ...] = Field((), exclude=True)
    separated_columns: tuple[str, ...] = Field((), exclude=True)

    def resolve(self, store: Store) -> Self:
        """Look up the campaigns, and the window if there is none.

        The default window is the last :data:`DEFAULT_DAYS` days with measurements, or all of a campaign's.
        """
        campaigns = {row.id: row.name for row in map(store.campaign, self.campaigns)}
        conditions = query_model.parse_alternatives(self._condition_texts)
        first, last = self._find_window(store)
        changes: dict[str, Any] = {
            "campaigns": tuple(campaigns),
            "campaign_names": tuple(campaigns.values()),
            "conditions": conditions,
            "where": tuple(text for condition in conditions for text in condition.texts),
            "filters": (),
            "first": first,
            "last": last,
        }
        # Grouping by kind or a condition on it implies all kinds.
        by_kind = "kind" in self.group_columns or any(
            condition.column == "kind" for condition in conditions
        )
        if by_kind and "kind" not in self.model_fields_set:
            changes["kind"] = ""
        if not _FIGURE_FIELDS & self.model_fields_set and self.view != self.opening_view:
            changes["view"] = self.opening_view
        if self.view == View.RELATIVE and self.scale == "log":
            # Differences are negative, too.
            changes["scale"] = "linear"
        return self.model_copy(update=changes)

    def require_sense(self) -> None:
        """Refuse a figure that would be empty or say nothing, before anything is read."""
        is_mean = self.view not in (View.LATENCY, View.DISTRIBUTION)
        if is_mean and self.metric in {metric.name for metric in METRICS} & {*self.group_columns}:
            raise ConfigError(
                f"each group has a single {title_column(self.metric)}: its mean says nothing",
                hint="Choose another metric, or another column.",
            )
        if self.view == View.RELATIVE and {*self.group_columns} <= {*_WORK_COLUMNS}:
            titles = " and ".join(map(title_column, self.group_columns))
            raise ConfigError(
                f"by {titles}, the same work would be compared with itself",
                hint="Choose a site, day, release or door, or show means.",
            )
        for pair in combinations(self.group_columns, 2):
            for detailed, implied in (pair, pair[::-1]):
                is_empty = self.view == View.HEATMAP or (
                    implied in query_model.TIME_UNITS and implied == self.by
                )
                is_empty |= detailed == _JOB and self.panels in pair
                if is_empty and _is_implied(implied, detailed):
                    raise ConfigError(
                        f"each {title_column(detailed)} has one {title_column(implied)}: nearly all "
                        "cells of this figure would be empty",
                        hint=f"Leave out {title_column(implied)} or {title_column(detailed)}.",
                    )

    def resolve_valid(self, store: Store) -> Self:
        """Resolve what is valid, for the form of an address with mistakes."""
        axes = [
            name for name in (self.by, self.color, self.panels) if query_model.is_variant_axis(name)
        ]
        columns = ("", *DIMENSIONS, *axes)
        choices: Mapping[str, Collection[str]] = {
            "metric": [metric.name for metric in METRICS],
            "by": columns[1:],
            "color": columns,
            "panels": columns,
        }
        changes: dict[str, Any] = {
            name: type(self).model_fields[name].default
            for name, values in choices.items()
            if getattr(self, name) not in values
        }
        texts = self._condition_texts
        changes["where"] = [text for text in texts if _accepts(query_model.Condition.parse, text)]
        changes["unreadable_conditions"] = [text for text in texts if text not in changes["where"]]
        changes["campaigns"] = [text for text in self.campaigns if _accepts(store.campaign, text)]
        if self.first and self.last and self.first > self.last:
            changes |= {"first": "", "last": ""}
        return self.model_copy(update={**changes, "filters": ()}).resolve(store)

    @property
    def _condition_texts(self) -> list[str]:
        return [*self.where, *(f"{name}={text}" for name, text in self.filters)]

    def _find_window(self, store: Store) -> tuple[DayOrBlank, DayOrBlank]:
        first, last = self.first, self.last
        if first and last and first > last:
            raise ConfigError(f"from ({first}) is later than to ({last})")
        if self.campaigns or {"first", "last"} & self.model_fields_set:
            return first, last
        newest = overview_queries.find_last_day(store)
        if newest is None or day_from_number(newest) == date.max:
            return "", ""
        last = day_from_number(newest)
        return days_until(last, DEFAULT_DAYS)[0], last

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Columns whose values define a group."""
        names = (self.panels, self.by, *self.separated_columns, self.color)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def figure(self) -> query_model.FigureQuery:
        """Query to the database; columns that cannot be used this way are refused."""
        return query_model.FigureQuery(
            metrics=() if self.view == View.LATENCY else (self.metric,),
            by=self.group_columns,
            selection=query_model.Selection(self.campaigns, self.conditions),
            first_day=day_number(self.first) if self.first else None,
            last_day=day_number(self.last) if self.last else None,
            kind=self.kind or None,
            latencies=self.view == View.LATENCY,
        )

    def chosen_values(self, column: str) -> set[str]:
        """Return the values of a column that the conditions require."""
        return {
            "" if value is None else str(value)
            for condition in self.conditions
            if condition.column == column and condition.operator == "="
            for value in condition.values
        }

    @property
    def listed_columns(self) -> tuple[str, ...]:
        """Columns whose values the form suggests: the usual ones, and those that define groups."""
        of_groups = [
            name
            for name in self.group_columns
            if name in FILTER_COLUMNS and METRICS_BY_NAME[name].type == "text"
        ]
        return tuple(dict.fromkeys((*FILTERS, *of_groups)))

    @property
    def typed_conditions(self) -> list[str]:
        """Conditions that are not choices in a list of the form."""
        return [
            text
            for condition in self.conditions
            if condition.column not in self.listed_columns or condition.operator != "="
            for text in condition.texts
        ] + [*self.unreadable_conditions]

    @property
    def export_command(self) -> str:
        """Command that exports the figure's measurements; '' if none does."""
        words = ["treehammer", "export", "measurements.root"]
        words += ["--where", f"kind={self.kind}"] if self.kind else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        if self.first:
            words += ["--where", f"day>={day_number(self.first)}"]
        if self.last:
            words += ["--where", f"day<={day_number(self.last)}"]
        for where in self.conditions:
            texts = where.texts
            if len(texts) > 1 or len(self.campaigns) > 1:
                return ""
            words += ["--where", texts[0]]
        return shlex.join(words)


def _is_implied(implied: str, detailed: str) -> bool:
    """Return whether each value of a column has one value of another one."""
    if detailed == VARIANT_COLUMN and query_model.is_variant_axis(implied):
        return True
    return implied in _IMPLIED.get(detailed, ())


def _accepts(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except (ConfigError, NothingToDoError):
        return False
    return True
