"""Parameters of Explore's URL."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import EXECUTION_KINDS, TIMED
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    LONG_TEXT_METRICS,
    METRICS_BY_NAME,
)
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.read import overview_queries
from treehammer.sql.read.query_model import (
    TIME_UNITS,
    Condition,
    FigureQuery,
    Selection,
    parse_alternatives,
)
from treehammer.sql.write.store import Store
from treehammer.web.arranged_table import is_arrangement
from treehammer.web.display_formats import day_from_number, day_number, days_until, parse_day
from treehammer.web.labels import VARIANT_COLUMN

if TYPE_CHECKING:
    from starlette.requests import Request


#: Kinds of figures.
MEANS, DISTRIBUTION, LATENCY = "means", "distribution", "latency"
HEATMAP, SORTED, RELATIVE = "heatmap", "sorted", "relative"
VIEWS = {
    MEANS: "means",
    HEATMAP: "means as heat map",
    SORTED: "means, sorted",
    RELATIVE: "per cent against the same work",
    DISTRIBUTION: "distributions",
    LATENCY: "read latency",
}
#: Kinds of figures that show a mean for each group.
MEAN_VIEWS = (MEANS, HEATMAP, SORTED)
#: Kinds of error bars.
RMS, INTERVAL, NO_BARS = "rms", "interval", "none"
BARS = {RMS: "RMS of executions", INTERVAL: "95 % interval over jobs", NO_BARS: "none"}
SCALES = {"linear": "fitted to the data", "zero": "from zero", "log": "logarithmic"}
#: Default window: days up to the last one with measurements.
DEFAULT_DAYS = 30
#: Columns with a list of values in the form.
FILTERS = ("site", "test_name", "dataset", "door", "axis_root", VARIANT_COLUMN)

#: Parameters that are not conditions on a column.
_PARAMETERS = (
    "metric",
    "by",
    "color",
    "panels",
    "view",
    "bars",
    "scale",
    "campaign",
    "where",
    "from",
    "to",
    "format",
    "table",
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
    *TIME_UNITS,
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


@dataclass(frozen=True)
class ExploreQuery:
    """Parameters of one figure.

    Attributes:
        metric: a number of the catalogue, or ``extra_NAME``; ignored for read latencies.
        by: column along the horizontal axis.
        color: column shown by color and marker, '' for none.
        panels: column with one panel per value, '' for none.
        separated_columns: further columns shown by color and marker.
        view: one of :data:`VIEWS`.
        bars: one of :data:`BARS`.
        scale: scale of the vertical axis, one of :data:`SCALES`.
        kind: kind of execution, '' for all.
        campaigns: ids of campaigns; empty for all.
        campaign_names: names of these campaigns.
        conditions: conditions on columns.
        unreadable_conditions: texts that are not valid conditions.
        first: first day, None for no bound.
        last: last day, inclusive.
    """

    metric: str = "eff_job"
    by: str = "site"
    color: str = "axis_root"
    panels: str = ""
    separated_columns: tuple[str, ...] = ()
    view: str = MEANS
    bars: str = RMS
    scale: str = "linear"
    kind: str = TIMED
    campaigns: tuple[str, ...] = ()
    campaign_names: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unreadable_conditions: tuple[str, ...] = ()
    first: date | None = None
    last: date | None = None

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Columns whose values define a group."""
        names = (self.panels, self.by, *self.separated_columns, self.color)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def figure(self) -> FigureQuery:
        """Query to the database.

        Raises:
            ConfigError: a column cannot be used this way.
        """
        return FigureQuery(
            metrics=() if self.view == LATENCY else (self.metric,),
            by=self.group_columns,
            selection=Selection(self.campaigns, self.conditions),
            first_day=day_number(self.first) if self.first else None,
            last_day=day_number(self.last) if self.last else None,
            kind=self.kind or None,
            latencies=self.view == LATENCY,
        )

    @property
    def query_parameters(self) -> list[tuple[str, str]]:
        """All parameters for a permanent link: nothing depends on defaults or on the current day."""
        fields = [
            (name, getattr(self, name))
            for name in ("metric", "by", "color", "panels", "view", "bars", "scale", "kind")
        ]
        return [
            *fields,
            ("from", self.first.isoformat() if self.first else ""),
            ("to", self.last.isoformat() if self.last else ""),
            *(("campaign", campaign) for campaign in self.campaigns),
            *(("where", text) for condition in self.conditions for text in condition.texts),
        ]

    def chosen_values(self, column: str) -> set[str]:
        """Return the values of a column that the conditions require."""
        return {
            "" if value is None else str(value)
            for condition in self.conditions
            if condition.column == column and condition.operator == "="
            for value in condition.values
        }

    @property
    def typed_conditions(self) -> list[str]:
        """Conditions that are not choices in a list of the form."""
        return [
            text
            for condition in self.conditions
            if condition.column not in FILTERS or condition.operator != "="
            for text in condition.texts
        ] + [*self.unreadable_conditions]

    @property
    def export_command(self) -> str:
        """Command that exports the figure's measurements; '' if none does."""
        words = ["treehammer", "export", "measurements.root"]
        words += _where_option(f"kind={self.kind}") if self.kind else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        if self.first:
            words += _where_option(f"day>={day_number(self.first)}")
        if self.last:
            words += _where_option(f"day<={day_number(self.last)}")
        for where in self.conditions:
            texts = where.texts
            if len(texts) > 1 or len(self.campaigns) > 1:
                return ""
            words += _where_option(texts[0])
        return shlex.join(words)


def _where_option(text: str) -> list[str]:
    return ["--where", text]


def parse_explore_query(request: Request, store: Store, default: ExploreQuery) -> ExploreQuery:
    """Parse the parameters of a URL; missing ones are taken from ``default``.

    The default window is the last :data:`DEFAULT_DAYS` days with measurements, or all of a campaign's.

    Raises:
        ConfigError: a parameter is unknown or invalid.
    """
    parameters = request.query_params
    _require_known_parameters(parameters)
    campaigns = {
        row.id: row.name for row in map(store.campaign, _given_values(request, "campaign"))
    }
    first, last = _parse_window(parameters, store, bool(campaigns))
    if not parameters.get("by", default.by):
        raise ConfigError("by is empty; it names the column of the horizontal axis")
    conditions = parse_alternatives(_conditions(request))
    query = replace(
        default,
        metric=parameters.get("metric", default.metric),
        by=parameters.get("by", default.by),
        color=parameters.get("color", default.color),
        panels=parameters.get("panels", default.panels),
        view=_parse_choice(parameters, "view", VIEWS, default.view),
        bars=_parse_choice(parameters, "bars", BARS, default.bars),
        scale=_parse_choice(parameters, "scale", SCALES, default.scale),
        campaigns=tuple(campaigns),
        campaign_names=tuple(campaigns.values()),
        conditions=conditions,
        first=first,
        last=last,
    )
    if query.view == RELATIVE and query.scale == "log":
        # Differences are negative, too.
        query = replace(query, scale="linear")
    # Grouping by kind or a condition on it implies all kinds.
    kinds = "kind" in query.group_columns or any(where.column == "kind" for where in conditions)
    return replace(
        query,
        kind=_parse_choice(
            parameters, "kind", ("", *EXECUTION_KINDS), "" if kinds else default.kind
        ),
    )


def parse_leniently(request: Request, store: Store, default: ExploreQuery) -> ExploreQuery:
    """Parse the valid parameters of a URL that has invalid ones, for the form."""
    parameters = request.query_params
    columns = ("", *DIMENSIONS)
    allowed: Mapping[str, Iterable[str]] = {
        "metric": [metric.name for metric in METRICS],
        "by": DIMENSIONS,
        "color": columns,
        "panels": columns,
        "view": VIEWS,
        "bars": BARS,
        "scale": SCALES,
        "kind": ("", *EXECUTION_KINDS),
    }
    choices = {
        name: parameters[name]
        for name, values in allowed.items()
        if parameters.get(name, "-") in values
    }
    valid, invalid = [], []
    for text in _conditions(request):
        try:
            Condition.parse(text)
            valid.append(text)
        except ConfigError:
            invalid.append(text)
    campaigns: dict[str, str] = {}
    for text in _given_values(request, "campaign"):
        with suppress(ConfigError, NothingToDoError):
            campaigns[store.campaign(text).id] = text
    first = last = None
    with suppress(ConfigError):
        first, last = _parse_window(parameters, store, bool(campaigns))
    fields: dict[str, Any] = {**choices, "first": first, "last": last}
    return replace(
        default,
        **fields,
        campaigns=tuple(campaigns),
        campaign_names=tuple(campaigns.values()),
        conditions=parse_alternatives(valid),
        unreadable_conditions=tuple(invalid),
    )


def _require_known_parameters(names: Iterable[str]) -> None:
    known_names = [*_PARAMETERS, *METRICS_BY_NAME]
    for name in names:
        if name not in known_names and not is_arrangement(name):
            hint = f"{suggest_word(name, known_names)}All catalogue columns are filters."
            raise ConfigError(f"unknown parameter {name[:40]!r}", hint=hint)


def _given_values(request: Request, name: str) -> list[str]:
    return [text for text in request.query_params.getlist(name) if text.strip()]


def _conditions(request: Request) -> list[str]:
    return _given_values(request, "where") + [
        f"{name}={value}"
        for name, value in request.query_params.multi_items()
        if name in METRICS_BY_NAME and name not in _PARAMETERS and name != "kind" and value
    ]


def _parse_window(
    parameters: Mapping[str, str], store: Store, of_campaigns: bool
) -> tuple[date | None, date | None]:
    first, last = (
        parse_day(parameters[name], name) if parameters.get(name) else None
        for name in ("from", "to")
    )
    if first and last and first > last:
        raise ConfigError(f"from ({first}) is later than to ({last})")
    if of_campaigns or "from" in parameters or "to" in parameters:
        return first, last
    newest = overview_queries.find_last_day(store)
    if newest is None or day_from_number(newest) == date.max:
        return None, None
    last = day_from_number(newest)
    return days_until(last, DEFAULT_DAYS)[0], last


def _parse_choice(
    parameters: Mapping[str, str], name: str, choices: Collection[str], default: str
) -> str:
    value = parameters.get(name, default)
    if value not in choices:
        words = ", ".join(word for word in choices if word)
        raise ConfigError(f"{name} must be one of {words}, not {value[:40]!r}")
    return value
