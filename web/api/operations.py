"""What programs may ask of what the pages show: addresses, parameters, tables.

:mod:`treehammer.web.api.openapi` describes it, :mod:`treehammer.web.api.page_data` answers it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.measurement_record import MAX_TEXT, max_length
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Metric
from treehammer.collectors.record.outcome import BAD_OUTCOME_LABELS
from treehammer.collectors.service_spec import API_PREFIX, MEASUREMENTS_PATH
from treehammer.sql.core.schema import ROLLUP_METRICS

#: Addresses of which no page is another form; the others begin as ``OPERATIONS`` say.
MEASUREMENT_PATH = f"{MEASUREMENTS_PATH}/{{measurement_id}}"
TOKEN_PATH, HEALTH_PATH, DESCRIPTION_PATH = (
    f"{API_PREFIX}/token",
    f"{API_PREFIX}/health",
    f"{API_PREFIX}/openapi.json",
)

#: Characters of a value.
MAX_VALUE_CHARS = 500
#: Text as addresses may hold it.
NO_NUL: Mapping[str, Any] = {"type": "string", "pattern": "^[^\\u0000]*$"}
_TEXT: Mapping[str, Any] = {**NO_NUL, "minLength": 1, "maxLength": MAX_VALUE_CHARS}
#: A condition: a column and a value of it, as long as those of a filter.
_CONDITION: Mapping[str, Any] = {
    **_TEXT,
    "maxLength": MAX_TEXT + max(len(f"{metric.name}!=") for metric in CATALOGUE),
}
_FORMAT: Mapping[str, Any] = {"enum": ["json", "csv"]}
_DAY: Mapping[str, Any] = {"type": "string", "format": "date"}
_SHARE: Mapping[str, Any] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_EMPTY: Mapping[str, Any] = {"const": ""}
_TEXT_OR_NONE: Mapping[str, Any] = {"anyOf": [_TEXT, _EMPTY]}
_DAY_OR_NONE: Mapping[str, Any] = {"anyOf": [_DAY, _EMPTY]}
_PAGE: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1_000_000}


@dataclass(frozen=True)
class Parameter:
    """A parameter: after '?', or where ``path``, a part of the address; ``many`` may be repeated.

    Without one that is ``required`` nothing is answered.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    in_path: bool = False
    repeatable: bool = False
    required: bool = False

    def allows(self, value: str) -> bool:
        """Whether a value after '?' is as the schema says; whether a day is one, who reads it tells."""
        schema = self.schema
        if "anyOf" in schema:
            return any(replace(self, schema=one).allows(value) for one in schema["anyOf"])
        if "const" in schema:
            return value == str(schema["const"])
        if "enum" in schema:
            return value in map(str, schema["enum"])
        if schema["type"] == "integer":
            # No sign and no zeros before it, as JSON writes numbers.
            whole = value.isascii() and value.isdigit() and len(value) < 16 and value[0] != "0"
            return whole and schema["minimum"] <= int(value) <= schema["maximum"]
        if schema["type"] == "number":
            told = re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII)
            return (
                bool(told)
                and schema["exclusiveMinimum"] < float(value) < schema["exclusiveMaximum"]
            )
        return bool(value) and len(value) <= schema.get("maxLength", MAX_VALUE_CHARS)


@dataclass(frozen=True)
class Operation:
    """One address.

    Attributes:
        address: beneath :data:`~treehammer.collectors.service_spec.API_PREFIX`, as OpenAPI writes it.
        name: of the operation.
        page: name of the route of the page that shows the same.
        summary: one line.
        tables: name -> what its rows are.
        parameters: those of its own.
        about: what the page tells beside its tables.
        always: whether it tells all of that whatever is asked.
        filters: columns by whose values measurements are chosen.
    """

    path: str
    name: str
    page_route: str
    summary: str
    tables: Mapping[str, str]
    parameters: tuple[Parameter, ...] = ()
    about: tuple[str, ...] = ()
    always_about: bool = True
    filters: tuple[Parameter, ...] = ()

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Those that are named, and filters."""
        return (*self.named_parameters, *self.filters)

    @property
    def named_parameters(self) -> tuple[Parameter, ...]:
        """Its own, and those that all have."""
        return (
            *self.parameters,
            Parameter("table", "Only this table.", {"enum": list(self.tables)}),
            Parameter("format", "CSV is one table, the first when none is named.", _FORMAT),
        )


def _window_parameters(many: tuple[int, ...]) -> tuple[Parameter, ...]:
    days = {"type": "integer", "enum": list(many)}
    return (
        Parameter("until", "The last day (UTC); today when it is not said.", _DAY),
        Parameter("days", "How many days.", days),
    )


_COMPARISON_TABLES = {
    "pooled": "variants over all sites",
    "by_site": "variants by site",
    "missing": "what is on one side only",
}
#: What it is of, where a slowdown points, what to know.
_COMPARISON_ABOUT = ("asked_of", "attribution", "notes")
_EXPLORE_TABLES = {
    "figure": "groups of measurements with their numbers; of read latencies their bins",
    "quantiles": "the read latencies below which shares of the reads lie; empty of other views",
}
_ANY_OF_SEVERAL = "of several of these for one column any one."
_EXPLORE_PARAMETERS = (
    Parameter("metric", "A number of the catalogue, or extra_NAME.", _TEXT),
    Parameter("by", "The column along the horizontal axis.", _TEXT),
    Parameter("colour", "A second column that makes groups; empty for none.", _TEXT_OR_NONE),
    Parameter("panels", "A third one; empty for none.", _TEXT_OR_NONE),
    Parameter(
        "view",
        "Means, distributions, or histograms of read latency.",
        {"enum": ["means", "distribution", "latency"]},
    ),
    Parameter("bars", "What the spread is.", {"enum": ["rms", "interval", "none"]}),
    Parameter("scale", "Of the axis of pictures.", {"enum": ["linear", "log"]}),
    Parameter(
        "kind", "What kind of execution; empty for all kinds.", {"enum": ["", *EXECUTION_KINDS]}
    ),
    Parameter("campaign", "Only of this campaign.", _TEXT, repeatable=True),
    Parameter(
        "where", f"A condition, as COLUMN=VALUE; {_ANY_OF_SEVERAL}", _CONDITION, repeatable=True
    ),
    Parameter(
        "from", "The first day (UTC); empty for all days, without it the last 30.", _DAY_OR_NONE
    ),
    Parameter("to", "The last day (UTC); empty for no bound.", _DAY_OR_NONE),
)


def _filter_parameter(metric: Metric) -> Parameter:
    """Text as long as the column holds it, but for texts that no address has room for."""
    schema = _TEXT
    if metric.type == "text":
        schema = {**_TEXT, "maxLength": min(max_length(metric), MAX_TEXT)}
    meaning = f"Only of this {metric.name}; of several any one."
    return Parameter(metric.name, meaning, schema, repeatable=True)


#: Every column that a condition can compare.
_FILTERS = tuple(
    _filter_parameter(metric)
    for metric in CATALOGUE
    if metric.type not in ("ints", "floats") and metric.name != "kind"
)
_EXPLORE_ABOUT = (
    "metric",
    "unit",
    "meaning",
    "bars",
    "caption",
    "selection",
    "from",
    "to",
    "kind",
    "groups",
    "mixed",
    "mixed_most",
    "source",
)

OPERATIONS = (
    Operation(
        "/overview",
        "getOverview",
        "overview",
        "What runs now, the latest verdicts, sites by day",
        {
            "site_days": "sites and days",
            "running": "campaigns with jobs that are not over",
            "verdicts": "the latest comparisons",
        },
        _window_parameters((7, 14, 30, 60)),
        ("news",),
    ),
    Operation(
        "/days/{day}",
        "getDay",
        "day",
        "What a site measured on a day, and what failed",
        {
            "measured": "what was measured",
            "failing": "failures",
            "jobs": "jobs that measured, with their campaigns",
        },
        (
            Parameter("day", "The day (UTC).", _DAY, in_path=True),
            Parameter("site", "The site; empty for none.", _TEXT_OR_NONE, required=True),
        ),
        ("status", "counts", "classes"),
    ),
    Operation(
        "/campaigns",
        "listCampaigns",
        "campaigns",
        "Campaigns, the newest first, 20 on a page",
        {"campaigns": "campaigns"},
        (Parameter("page", "Which page.", _PAGE),),
        ("page", "pages", "count"),
    ),
    Operation(
        "/campaigns/{campaign_id}",
        "getCampaign",
        "campaign",
        "A campaign: progress, failures, jobs, exactly what runs",
        {
            "jobs": "selected jobs",
            "sites": "jobs by site and state",
            "failures": "failures by class and site",
            "unsupported": "what a release or set-up does not support, by site",
            "messages": "what was said",
        },
        (
            Parameter("campaign_id", "Its identity.", _TEXT, in_path=True),
            Parameter("site", "Only jobs of this site.", _TEXT),
            Parameter(
                "state", "Only jobs in this state.", {"enum": [state.value for state in JobState]}
            ),
            Parameter("failure", "Only jobs that failed so.", {"enum": list(BAD_OUTCOME_LABELS)}),
            Parameter("page", "Which page of the jobs.", _PAGE),
        ),
        ("progress", "facts", "command_line", "render", "page", "pages", "job_count"),
    ),
    Operation(
        "/jobs/{job_id}",
        "getJob",
        "job",
        "A job: its attempts and measurements",
        {"measurements": "measurements", "attempts": "attempts"},
        (Parameter("job_id", "Its identity.", _TEXT, in_path=True),),
        ("facts", "command_line"),
    ),
    Operation(
        "/sites", "listSites", "sites", "Every site and its last 30 days", {"sites": "sites"}
    ),
    Operation(
        "/sites/{site}",
        "getSite",
        "site",
        "A site beside the median of similar ones, and what changed there",
        {
            "series": "the site and the median of similar sites, by day or week",
            "state": "what its doors, releases and nodes are",
            "changes": "on which day one of them changed",
            "outcomes": "what came back, by day",
            "work": "what was ever measured",
        },
        (
            Parameter("site", "Its name.", _TEXT, in_path=True),
            Parameter(
                "metric", "A metric that is rolled up by day.", {"enum": list(ROLLUP_METRICS)}
            ),
            Parameter("test", "Only this test.", _TEXT),
            Parameter("variant", "Only this variant, of any release: JSON of its axes.", _TEXT),
            Parameter("root", "Only this release.", _TEXT),
            Parameter("protocol", "Only doors of this protocol.", _TEXT),
            *_window_parameters((14, 30, 90, 180)),
        ),
    ),
    Operation(
        "/comparisons",
        "listComparisons",
        "compare",
        "Comparisons that were made, the newest first, 20 on a page",
        {"comparisons": "comparisons"},
        (Parameter("page", "Which page.", _PAGE),),
        ("page", "pages", "count"),
    ),
    Operation(
        "/comparisons/{comparison}",
        "getComparison",
        "comparison",
        "A comparison that was made, with the pairs that it rests on",
        {**_COMPARISON_TABLES, "pairs": "pairs of jobs"},
        (Parameter("comparison", "Its identity.", _TEXT, in_path=True),),
        _COMPARISON_ABOUT,
    ),
    Operation(
        "/compare",
        "compare",
        "compare",
        "Two releases, or any two selections; one that was made, else made now",
        _COMPARISON_TABLES,
        (
            Parameter("a", "The value of the axis that is compared with.", _TEXT),
            Parameter("b", "The value that is compared.", _TEXT),
            Parameter("axis", "The axis; root when it is not said, or selection.", _TEXT),
            Parameter("campaign", "Only of this campaign.", _TEXT, repeatable=True),
            Parameter(
                "where",
                f"A condition on both sides, as COLUMN=VALUE; {_ANY_OF_SEVERAL}",
                _CONDITION,
                repeatable=True,
            ),
            Parameter(
                "where_a", f"A condition on A alone; {_ANY_OF_SEVERAL}", _CONDITION, repeatable=True
            ),
            Parameter(
                "where_b", f"A condition on B alone; {_ANY_OF_SEVERAL}", _CONDITION, repeatable=True
            ),
            Parameter(
                "delta",
                "Effects within this count as none, in ln; 0.02 when it is not said.",
                _SHARE,
            ),
            Parameter("now", "Make it anew in any case.", {"enum": ["1"]}),
        ),
        _COMPARISON_ABOUT,
        # Without a question it is the list of comparisons.
        always_about=False,
    ),
    Operation(
        "/explore",
        "explore",
        "explore",
        "Any metric by any columns",
        _EXPLORE_TABLES,
        _EXPLORE_PARAMETERS,
        _EXPLORE_ABOUT,
        filters=_FILTERS,
    ),
    Operation(
        "/figures/s0",
        "getFigureS0",
        "s0",
        "CPU efficiency by site and variant, as in study S0",
        _EXPLORE_TABLES,
        _EXPLORE_PARAMETERS,
        _EXPLORE_ABOUT,
        filters=_FILTERS,
    ),
)
