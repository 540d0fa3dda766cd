"""Parameters of Explore's URL."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from datetime import date
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from treehammer.collectors.job_spec import EXECUTION_KINDS, TIMED
from treehammer.collectors.record.metric_catalogue import CATALOGUE, LONG_TEXT_METRICS
from treehammer.errors import ConfigError
from treehammer.sql.read import overview_queries, query_model
from treehammer.sql.write.store import Store
from treehammer.web.display_formats import day_from_number, day_number, days_until
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


VIEWS: Mapping[str, str] = {
    View.RELATIVE: "per cent against the same work",
    View.MEANS: "means",
    View.HEATMAP: "means as heat map",
}
#: Views of earlier versions -> parameters of the figure that shows most of the same.
FORMER_VIEWS: Mapping[str, Mapping[str, str]] = {
    "sorted": {"view": View.HEATMAP},
    "distribution": {"view": View.MEANS},
    "latency": {"view": View.MEANS, "metric": "read_latency_p95_s"},
}
#: Default window: days up to the last one with measurements.
DEFAULT_DAYS = 30
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


#: Parameters of the figure, apart from those that select executions.
_FIGURE_FIELDS = {"metric", "by", "color", "panels", "view"}


class ExploreQuery(PageQuery):
    """Parameters of one figure.

    Attributes:
        filters: values of columns that the address names as parameters.
        conditions: those of ``where`` and ``filters``.
        separated_columns: further columns shown by color and marker.
    """

    # Links of earlier versions name the kind of error bars, which are the RMS now, and an axis.
    other_parameters: ClassVar[Collection[str] | None] = (SIZE, "bars", "scale")
    filter_columns = FILTER_COLUMNS
    #: View of an address that names no parameter of the figure.
    opening_view: ClassVar[str] = View.RELATIVE

    metric: Text = Field("eff_job", description="A numeric metric of the catalogue, or extra_NAME.")
    by: Text = Field("site", description="Column on the horizontal axis.")
    color: TextOrBlank = Field("axis_root", description="Second grouping column; empty for none.")
    panels: TextOrBlank = Field("", description="Third grouping column; empty for none.")
    view: Annotated[str, OneOf(tuple(VIEWS))] = Field(
        View.MEANS,
        title="Show",
        description="Means as points or heat map; by default points, and differences from the same work "
        "if no parameter of the figure is given.",
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
    separated_columns: tuple[str, ...] = Field((), exclude=True)

    def resolve(self, store: Store) -> Self:
        """Look up the campaigns, and the window if there is none.

        The default window is the last :data:`DEFAULT_DAYS` days with measurements, or all of a campaign's.
        """
        campaigns = {row.id: row.name for row in map(store.campaign, self.campaigns)}
        filters = (f"{name}={text}" for name, text in self.filters)
        conditions = query_model.parse_alternatives([*self.where, *filters])
        first, last = self._find_window(store)
        changes: dict[str, Any] = {
            "campaigns": tuple(campaigns),
            "campaign_names": tuple(campaigns.values()),
            "conditions": conditions,
            "where": tuple(chain.from_iterable(condition.texts for condition in conditions)),
            "filters": (),
            "first": first,
            "last": last,
        }
        # Grouping by kind or a condition on it implies all kinds.
        columns = {*self.group_columns, *(condition.column for condition in conditions)}
        if "kind" in columns - self.model_fields_set:
            changes["kind"] = ""
        if not _FIGURE_FIELDS & self.model_fields_set and self.view != self.opening_view:
            changes["view"] = self.opening_view
        return self.model_copy(update=changes)

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
            metrics=(self.metric,),
            by=self.group_columns,
            selection=query_model.Selection(self.campaigns, self.conditions),
            first_day=day_number(self.first) if self.first else None,
            last_day=day_number(self.last) if self.last else None,
            kind=self.kind or None,
        )

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
