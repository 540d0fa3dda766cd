"""What Explore is asked for, as an address says it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from starlette.requests import Request

from treehammer.collectors.job_spec import EXECUTION_KINDS, TIMED
from treehammer.collectors.record.metric_catalogue import (
    CATALOGUE,
    LONG_TEXT_METRICS,
    METRICS_BY_NAME,
)
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.sql.read import overview_queries
from treehammer.sql.read.figure_query import TIME_UNITS, FigureQuery
from treehammer.sql.read.measurement_selection import Condition, Selection, parse_alternatives
from treehammer.sql.write.store import Store
from treehammer.web.display import calendar_days
from treehammer.web.display.variant_labels import VARIANT_COLUMN

#: What is drawn of each group.
MEANS, DISTRIBUTION, LATENCY = "means", "distribution", "latency"
VIEWS = {MEANS: "means", DISTRIBUTION: "distributions", LATENCY: "read latency"}
#: What error bars are.
RMS, INTERVAL, NO_BARS = "rms", "interval", "none"
BARS = {RMS: "RMS of executions", INTERVAL: "95 % interval over jobs", NO_BARS: "none"}
SCALES = {"linear": "linear", "log": "logarithmic"}
#: Days that are shown when nothing is said, up to the last one that has measurements.
DEFAULT_DAYS = 30
#: Columns by which filters have lists to choose from.
FILTERS = ("site", "test_name", "dataset", "door", "axis_root", VARIANT_COLUMN)

#: Parameters that are no conditions on a column.
_PARAMETERS = (
    "metric",
    "by",
    "colour",
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
#: Numbers that can be looked at, in the catalogue's order.
METRICS = tuple(
    metric
    for metric in CATALOGUE
    if metric.type in ("int", "float")
    and metric.owner != "plan"
    and metric.name not in _NOT_PLOTTABLE
)
#: What groups can be made of.
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
    """One figure.

    Attributes:
        metric: a number of the catalogue, or ``extra_NAME``; of no account for read latencies.
        by: the column along the horizontal axis.
        colour: the column that colours and markers tell apart, '' for none.
        panels: the column of which each value has a panel of its own, '' for none.
        apart: more columns that colours and markers tell apart.
        view: one of :data:`VIEWS`.
        bars: one of :data:`BARS`.
        scale: of the vertical axis, one of :data:`SCALES`.
        kind: what kind of execution, '' for all kinds.
        campaigns: identities; of all when empty.
        named: the names of these campaigns.
        wheres: conditions.
        wrong: what was typed as conditions and is none.
        first: the first day, None for no bound.
        last: the last day, which still counts.
    """

    metric: str = "eff_job"
    by: str = "site"
    colour: str = "axis_root"
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
        """The columns whose values make a group."""
        names = (self.panels, self.by, *self.separated_columns, self.colour)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def figure(self) -> FigureQuery:
        """The question to the database.

        Raises:
            ConfigError: a column cannot be used so.
        """
        return FigureQuery(
            metrics=() if self.view == LATENCY else (self.metric,),
            by=self.group_columns,
            selection=Selection(self.campaigns, self.conditions),
            first_day=calendar_days.day_number(self.first) if self.first else None,
            last_day=calendar_days.day_number(self.last) if self.last else None,
            kind=self.kind or None,
            latencies=self.view == LATENCY,
        )

    @property
    def query_parameters(self) -> list[tuple[str, str]]:
        """The address that asks the same for good: everything is said, no day moves on."""
        said = [
            (name, getattr(self, name))
            for name in ("metric", "by", "colour", "panels", "view", "bars", "scale", "kind")
        ]
        return [
            *said,
            ("from", self.first.isoformat() if self.first else ""),
            ("to", self.last.isoformat() if self.last else ""),
            *(("campaign", one) for one in self.campaigns),
            *(("where", text) for where in self.conditions for text in where.texts),
        ]

    def chosen_values(self, column: str) -> set[str]:
        """The values of a column that are asked for."""
        return {
            "" if value is None else str(value)
            for where in self.conditions
            if where.column == column and where.operator == "="
            for value in where.values
        }

    @property
    def typed_conditions(self) -> list[str]:
        """The conditions that no list of the form holds."""
        return [
            text
            for where in self.conditions
            if where.column not in FILTERS or where.operator != "="
            for text in where.texts
        ] + [*self.unreadable_conditions]

    @property
    def export_command(self) -> str:
        """The command that exports the measurements behind the figure; '' where none can."""
        words = ["treehammer", "export", "measurements.root"]
        words += _parse_condition(f"kind={self.kind}") if self.kind else []
        for campaign in self.campaigns:
            words += ["--campaign", campaign]
        if self.first:
            words += _parse_condition(f"day>={calendar_days.day_number(self.first)}")
        if self.last:
            words += _parse_condition(f"day<={calendar_days.day_number(self.last)}")
        for where in self.conditions:
            texts = where.texts
            if len(texts) > 1 or len(self.campaigns) > 1:
                return ""
            words += _parse_condition(texts[0])
        return shlex.join(words)


def _parse_condition(text: str) -> list[str]:
    return ["--where", text]


def parse_explore_query(request: Request, store: Store, default: ExploreQuery) -> ExploreQuery:
    """What an address asks for; what it does not say is as in ``default``.

    Days that are not said are the last :data:`DAYS` that may have measurements, or all of a
    campaign's.

    Raises:
        ConfigError: it asks for what there is not; the sentence names the parameter.
    """
    sent = request.query_params
    for name in sent:
        if name not in _PARAMETERS and name not in METRICS_BY_NAME:
            hint = f"{suggest_word(name, [*_PARAMETERS, *METRICS_BY_NAME])}Columns of the catalogue are filters."
            raise ConfigError(f"there is no parameter {name[:40]!r}", hint=hint)
    campaigns = {
        row.id: row.name for row in map(store.campaign, _given_values(request, "campaign"))
    }
    first, last = _parse_window(sent, store, bool(campaigns))
    if not sent.get("by", default.by):
        raise ConfigError("by names no column; it is what the horizontal axis shows")
    wheres = parse_alternatives(_conditions(request))
    asked = replace(
        default,
        metric=sent.get("metric", default.metric),
        by=sent.get("by", default.by),
        colour=sent.get("colour", default.colour),
        panels=sent.get("panels", default.panels),
        view=_parse_choice(sent, "view", VIEWS, default.view),
        bars=_parse_choice(sent, "bars", BARS, default.bars),
        scale=_parse_choice(sent, "scale", SCALES, default.scale),
        campaigns=tuple(campaigns),
        campaign_names=tuple(campaigns.values()),
        conditions=wheres,
        first=first,
        last=last,
    )
    # Who asks for kinds means all of them, or those of the condition.
    kinds = "kind" in asked.group_columns or any(where.column == "kind" for where in wheres)
    return replace(
        asked,
        kind=_parse_choice(sent, "kind", ("", *EXECUTION_KINDS), "" if kinds else default.kind),
    )


def parse_leniently(request: Request, store: Store, default: ExploreQuery) -> ExploreQuery:
    """What can be understood of an address that asks for what there is not, for the form."""
    sent = request.query_params
    columns = ("", *DIMENSIONS)
    known: Mapping[str, Iterable[str]] = {
        "metric": [metric.name for metric in METRICS],
        "by": DIMENSIONS,
        "colour": columns,
        "panels": columns,
        "view": VIEWS,
        "bars": BARS,
        "scale": SCALES,
        "kind": ("", *EXECUTION_KINDS),
    }
    choices = {name: sent[name] for name, values in known.items() if sent.get(name, "-") in values}
    right, wrong = [], []
    for text in _conditions(request):
        try:
            Condition.parse(text)
            right.append(text)
        except ConfigError:
            wrong.append(text)
    campaigns: dict[str, str] = {}
    for text in _given_values(request, "campaign"):
        with suppress(ConfigError, NothingToDoError):
            campaigns[store.campaign(text).id] = text
    first = last = None
    with suppress(ConfigError):
        first, last = _parse_window(sent, store, bool(campaigns))
    given: dict[str, Any] = {**choices, "first": first, "last": last}
    return replace(
        default,
        **given,
        campaigns=tuple(campaigns),
        campaign_names=tuple(campaigns.values()),
        conditions=parse_alternatives(right),
        unreadable_conditions=tuple(wrong),
    )


def _given_values(request: Request, name: str) -> list[str]:
    return [text for text in request.query_params.getlist(name) if text.strip()]


def _conditions(request: Request) -> list[str]:
    return _given_values(request, "where") + [
        f"{name}={value}"
        for name, value in request.query_params.multi_items()
        if name in METRICS_BY_NAME and name not in _PARAMETERS and name != "kind" and value
    ]


def _parse_window(
    sent: Mapping[str, str], store: Store, of_campaigns: bool
) -> tuple[date | None, date | None]:
    first = calendar_days.parse_day(sent["from"], "from") if sent.get("from") else None
    last = calendar_days.parse_day(sent["to"], "to") if sent.get("to") else None
    if first and last and first > last:
        raise ConfigError(f"from ({first}) is later than to ({last})")
    if of_campaigns or "from" in sent or "to" in sent:
        return first, last
    newest = overview_queries.find_last_day(store)
    if newest is None or calendar_days.day_from_number(newest) == date.max:
        return None, None
    last = calendar_days.day_from_number(newest)
    return calendar_days.days_until(last, DEFAULT_DAYS)[0], last


def _parse_choice(sent: Mapping[str, str], name: str, known: Collection[str], default: str) -> str:
    value = sent.get(name, default)
    if value not in known:
        words = ", ".join(word for word in known if word)
        raise ConfigError(f"{name} must be one of {words}, not {value[:40]!r}")
    return value
