"""API operations that return the content of pages: paths, parameters, tables.

:mod:`treehammer.web.api.openapi` describes them, :mod:`treehammer.web.api.page_data` serves them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.collectors.job_spec import (
    API_PREFIX,
    CAMPAIGNS_PATH,
    EXECUTION_KINDS,
    MEASUREMENTS_PATH,
    JobState,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_TEXT, Metric
from treehammer.collectors.record.operation_steps import CLIENT, SERVER
from treehammer.collectors.record.outcome import BAD_OUTCOME_LABELS
from treehammer.sql.core.schema import ROLLUP_METRICS

#: Paths of operations that correspond to no page.
MEASUREMENT_PATH = f"{MEASUREMENTS_PATH}/{{measurement_id}}"
CAMPAIGN_OPERATIONS_PATH = f"{CAMPAIGNS_PATH}/{{campaign_id}}/operations"
TOKEN_PATH, HEALTH_PATH, LIVE_PATH, DESCRIPTION_PATH = (
    f"{API_PREFIX}/token",
    f"{API_PREFIX}/health",
    f"{API_PREFIX}/live",
    f"{API_PREFIX}/openapi.json",
)

#: Maximum length of a parameter value, in characters.
MAX_VALUE_CHARS = 500
#: Text as an address may contain it.
NO_NUL: Mapping[str, Any] = {"type": "string", "pattern": "^[^\\u0000]*$"}
_TEXT: Mapping[str, Any] = {**NO_NUL, "minLength": 1, "maxLength": MAX_VALUE_CHARS}
#: A condition COLUMN=VALUE; the value may be as long as that of a filter.
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
    """A query parameter, or with ``in_path`` a part of the path."""

    name: str
    description: str
    schema: Mapping[str, Any]
    in_path: bool = False
    repeatable: bool = False
    required: bool = False

    def allows(self, value: str) -> bool:
        """Return whether a query value matches the schema, except for the format of days."""
        return _matches(self.schema, value)


def _matches(schema: Mapping[str, Any], value: str) -> bool:
    for keyword, check in _CHECKS.items():
        if keyword in schema:
            return check(schema[keyword], value)
    return _TYPE_CHECKS[schema["type"]](schema, value)


def _is_integer(schema: Mapping[str, Any], value: str) -> bool:
    # No sign and no leading zeros, as in JSON.
    plain = re.fullmatch(r"[1-9]\d{0,14}", value, re.ASCII)
    return bool(plain) and schema["minimum"] <= int(value) <= schema["maximum"]


def _is_number(schema: Mapping[str, Any], value: str) -> bool:
    plain = re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII)
    return bool(plain) and schema["exclusiveMinimum"] < float(value) < schema["exclusiveMaximum"]


def _is_text(schema: Mapping[str, Any], value: str) -> bool:
    return bool(value) and len(value) <= schema.get("maxLength", MAX_VALUE_CHARS)


#: Checks by the keyword of a schema, the first that it has.
_CHECKS: Mapping[str, Callable[[Any, str], bool]] = {
    "anyOf": lambda schemas, value: any(_matches(schema, value) for schema in schemas),
    "const": lambda constant, value: value == str(constant),
    "enum": lambda choices, value: value in map(str, choices),
}
#: Checks by the type of any other schema.
_TYPE_CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {
    "integer": _is_integer,
    "number": _is_number,
    "string": _is_text,
}


@dataclass(frozen=True)
class PageOperation:
    """An operation that returns the tables of a page.

    Attributes:
        path: below :data:`~treehammer.collectors.job_spec.API_PREFIX`, in OpenAPI notation.
        name: the operationId.
        page_route: name of the route of the page with the same content.
        summary: one line.
        tables: description of the rows by name of the table.
        parameters: of this operation alone.
        about: names of the values that the response holds beside its tables.
        always_about: whether every response holds all of them.
        filters: parameters that select measurements by the value of a column.
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
        """Return named parameters and filters."""
        return (*self.named_parameters, *self.filters)

    @property
    def named_parameters(self) -> tuple[Parameter, ...]:
        """Return the operation's own parameters and the common ones."""
        return (
            *self.parameters,
            Parameter("table", "Only this table.", {"enum": list(self.tables)}),
            Parameter("format", "CSV contains one table, by default the first.", _FORMAT),
        )


def _window_parameters(day_counts: tuple[int, ...]) -> tuple[Parameter, ...]:
    days = {"type": "integer", "enum": list(day_counts)}
    return (
        Parameter("to", "Last day (UTC), by default today.", _DAY),
        Parameter("days", "Number of days.", days),
    )


_COMPARISON_TABLES = {
    "pooled": "variants over all sites",
    "by_site": "variants by site",
    "missing": "variants measured on one side only",
    "counters": "exact counters of the same variants with their changes",
    "instructions": "instructions per event of the same variants, where they were counted",
}
_TIME_TABLE = "parts of the wall time of good timed measurements in solo mode"
_COMPARISON_ABOUT = ("conclusion", "selection", "attribution", "notes")
_COMPARISON_FILTERS = (
    Parameter("verdict", "Only rows with this verdict.", _TEXT),
    Parameter("metric", "Only this headline metric or exact counter.", _TEXT),
    Parameter("site", "Only this site.", _TEXT),
    Parameter("variant", "Only the variant with this label.", _TEXT),
)
_EXPLORE_TABLES = {
    "figure": "groups of measurements with their statistics, or the bins of read latencies",
    "quantiles": "quantiles of the read latency; empty in other views",
}
_CAMPAIGN = Parameter(
    "campaign", "Only measurements of this campaign; may be repeated.", _TEXT, repeatable=True
)


def _condition(name: str, meaning: str) -> Parameter:
    rule = "several on one column match any of them."
    return Parameter(name, f"{meaning}; {rule}", _CONDITION, repeatable=True)


_EXPLORE_PARAMETERS = (
    Parameter("metric", "A numeric metric of the catalogue, or extra_NAME.", _TEXT),
    Parameter("by", "Column on the horizontal axis.", _TEXT),
    Parameter("color", "Second grouping column; empty for none.", _TEXT_OR_NONE),
    Parameter("panels", "Third grouping column; empty for none.", _TEXT_OR_NONE),
    Parameter(
        "view",
        "Means, distributions, or histograms of read latency.",
        {"enum": ["means", "distribution", "latency"]},
    ),
    Parameter("bars", "Kind of error bars.", {"enum": ["rms", "interval", "none"]}),
    Parameter("scale", "Scale of the vertical axis of images.", {"enum": ["linear", "log"]}),
    Parameter("kind", "Kind of execution; empty for all.", {"enum": ["", *EXECUTION_KINDS]}),
    _CAMPAIGN,
    _condition("where", "A condition, as COLUMN=VALUE"),
    Parameter("from", "First day (UTC); empty for no bound, by default 30 days ago.", _DAY_OR_NONE),
    Parameter("to", "Last day (UTC); empty for no bound.", _DAY_OR_NONE),
)


def _filter_parameter(metric: Metric) -> Parameter:
    """Create the parameter of a column; its values are no longer than the column or an address."""
    schema = _TEXT
    if metric.type == "text":
        schema = {**_TEXT, "maxLength": min(metric.max_length, MAX_TEXT)}
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
    "aggregated",
    "aggregated_max",
    "source",
)

OPERATIONS = (
    PageOperation(
        "/overview",
        "getOverview",
        "overview",
        "Running campaigns, latest verdicts, sites by day",
        {
            "site_days": "sites and days",
            "running": "campaigns with unfinished jobs",
            "verdicts": "the latest comparisons",
            "storage_days": "storages and days with load tests, with their status",
            "states": "current states of sites and storages",
        },
        (
            *_window_parameters((7, 14, 30, 60)),
            Parameter(
                "by",
                "Sites of the table site_days: those of the jobs, or those of the storage.",
                {"enum": ["site", "storage_site"]},
            ),
        ),
        ("changes",),
    ),
    PageOperation(
        "/days/{day}",
        "getDay",
        "day",
        "Measurements and failures of a site on a day",
        {
            "measured": "measurements by test, variant and door",
            "failing": "failures",
            "jobs": "jobs with measurements, and their campaigns",
        },
        (
            Parameter("day", "Day (UTC).", _DAY, in_path=True),
            Parameter(
                "site", "Site; empty for measurements without a site.", _TEXT_OR_NONE, required=True
            ),
        ),
        ("status", "counts", "classes"),
    ),
    PageOperation(
        "/campaigns",
        "listCampaigns",
        "campaigns",
        "Campaigns, newest first, 20 per page",
        {"campaigns": "campaigns"},
        (Parameter("page", "Page number.", _PAGE),),
        ("page", "pages", "count"),
    ),
    # Listed before the campaign, whose identity may be any text.
    PageOperation(
        "/campaigns/{campaign_id}/load",
        "getCampaignLoad",
        "campaign-load",
        "Operations of a load test: rates, failures and latencies",
        {
            "levels": "every load: storage, door and variant, by operation and side",
            "steps": "time steps of the chosen load",
            "sides": "time steps as clients and servers saw them, if both timed the operation",
            "servers": "servers of the chosen load",
            "sites": "sites of the jobs of the chosen load",
            "starts": "common starts, and the spread of the real ones",
        },
        (
            Parameter("campaign_id", "Identity.", _TEXT, in_path=True),
            Parameter("operation", "Name of an operation; by default the most frequent.", _TEXT),
            Parameter("side", "Side that measured it.", {"enum": [CLIENT, SERVER]}),
            Parameter("load", "Value of the column load; by default the highest load.", _TEXT),
        ),
        ("operation", "side", "load", "evenness"),
    ),
    PageOperation(
        "/campaigns/{campaign_id}",
        "getCampaign",
        "campaign",
        "A campaign: progress, failures, jobs, submitted command",
        {
            "jobs": "selected jobs",
            "sites": "jobs by site and state",
            "failures": "failures by class and site",
            "unsupported": "tests that a release or setup does not support, by site",
            "messages": "error messages",
            "limits": "limits that the test states, with their outcomes",
        },
        (
            Parameter("campaign_id", "Identity.", _TEXT, in_path=True),
            Parameter("site", "Only jobs of this site.", _TEXT),
            Parameter(
                "state", "Only jobs in this state.", {"enum": [state.value for state in JobState]}
            ),
            Parameter(
                "failure", "Only jobs with this failure.", {"enum": list(BAD_OUTCOME_LABELS)}
            ),
            Parameter("page", "Page number of the jobs.", _PAGE),
        ),
        ("progress", "facts", "command_line", "render", "page", "pages", "job_count"),
    ),
    PageOperation(
        "/jobs/{job_id}",
        "getJob",
        "job",
        "A job: its attempts and measurements",
        {
            "measurements": "measurements",
            "attempts": "attempts",
            "time": _TIME_TABLE,
            "latencies": "reads by latency and release",
        },
        (Parameter("job_id", "Identity.", _TEXT, in_path=True),),
        ("facts", "command_line", "explanation"),
    ),
    PageOperation(
        "/patrol",
        "getPatrol",
        "patrol",
        "The patrol: entries, budgets of today, latest starts",
        {
            "entries": "entries of the patrol file with their last and next start",
            "budgets": "use and limits of sites today (UTC), and their back-off",
            "starts": "latest starts, newest first",
        },
        (),
        ("leader",),
    ),
    PageOperation(
        "/sites", "listSites", "sites", "All sites and their last 30 days", {"sites": "sites"}
    ),
    PageOperation(
        "/sites/{site}",
        "getSite",
        "site",
        "A site compared with the median of similar sites, and its changes",
        {
            "series": "the site and the median of similar sites, by day or week",
            "parts": "parts of the site's difference by variant, door, host and CPU model",
            "contrasts": "conditions in which most of the better sites differ",
            "time": _TIME_TABLE,
            "state": "doors, releases and nodes",
            "changes": "changes of doors, releases and nodes, by day",
            "door_days": "CPU and wall time of each door relative to the mean of the same work, by day",
            "outcomes": "outcomes by day",
            "work": "tests and variants ever measured",
            "states": "current states of its jobs and its storage",
            "state_changes": "changes of these states, also superseded ones",
            "changepoints": "steps of the last 90 days in daily series of the site",
        },
        (
            Parameter("site", "Name of the site.", _TEXT, in_path=True),
            Parameter("metric", "A metric with daily roll-ups.", {"enum": list(ROLLUP_METRICS)}),
            Parameter("test", "Only this test.", _TEXT),
            Parameter("variant", "Only this variant, for any release: its axes as JSON.", _TEXT),
            Parameter("root", "Only this release.", _TEXT),
            Parameter("protocol", "Only doors of this protocol.", _TEXT),
            *_window_parameters((14, 30, 90, 180)),
        ),
        ("standing", "explanation"),
    ),
    PageOperation(
        "/state-changes/{change}",
        "getStateChange",
        "state-change",
        "A change of a site's state with its evidence",
        {"results": "results behind it", "tests": "runs by test"},
        (Parameter("change", "Identity.", _TEXT, in_path=True),),
        ("change", "facts"),
    ),
    PageOperation(
        "/comparisons",
        "listComparisons",
        "compare",
        "Stored comparisons, newest first, 20 per page",
        {"comparisons": "comparisons"},
        (Parameter("page", "Page number.", _PAGE),),
        ("page", "pages", "count"),
    ),
    PageOperation(
        "/comparisons/{comparison}",
        "getComparison",
        "comparison",
        "A stored comparison with its pairs of jobs",
        {**_COMPARISON_TABLES, "pairs": "pairs of jobs"},
        (Parameter("comparison", "Identity.", _TEXT, in_path=True), *_COMPARISON_FILTERS),
        _COMPARISON_ABOUT,
    ),
    PageOperation(
        "/compare",
        "compareSelections",
        "compare",
        "Comparison of two releases or selections, stored or computed",
        _COMPARISON_TABLES,
        (
            Parameter("a", "Value of the axis on side A, the reference.", _TEXT),
            Parameter("b", "Value of the axis on side B.", _TEXT),
            Parameter("axis", "Axis, by default root; or selection.", _TEXT),
            _CAMPAIGN,
            _condition("where", "A condition on both sides, as COLUMN=VALUE"),
            _condition("where_a", "A condition on A alone"),
            _condition("where_b", "A condition on B alone"),
            Parameter(
                "delta",
                "Relevance limit in ln, by default 0.02: smaller effects count as none.",
                _SHARE,
            ),
            Parameter(
                "recompute", "Compute the comparison again even if it is stored.", {"enum": ["1"]}
            ),
            *_COMPARISON_FILTERS,
        ),
        _COMPARISON_ABOUT,
        # Without parameters the page lists the stored comparisons.
        always_about=False,
    ),
    PageOperation(
        "/explore",
        "exploreMeasurements",
        "explore",
        "A metric grouped by columns",
        _EXPLORE_TABLES,
        _EXPLORE_PARAMETERS,
        _EXPLORE_ABOUT,
        filters=_FILTERS,
    ),
    PageOperation(
        "/alarms",
        "listAlarms",
        "alarms",
        "States of the service, sites and releases for monitoring, and events",
        {
            "states": "states, worst first; figures only with kind and name",
            "events": "changed states and confirmed regressions, newest first",
        },
        (
            Parameter(
                "kind",
                "Only the subject of this kind and name.",
                {"enum": ["site", "release", "service"]},
            ),
            Parameter("name", "Name of the site or release.", _TEXT),
        ),
    ),
    PageOperation(
        "/changes",
        "listChanges",
        "changes",
        "Steps in daily series of the last 90 days",
        {
            "changepoints": "changes, slower ones first, then newest first",
            "commits": "comparisons of a test's commits, newest first",
        },
        (
            Parameter("site", "Changes of a site, as site of the jobs or storage.", _TEXT),
            Parameter("release", "Changes of a ROOT release.", _TEXT),
        ),
    ),
    PageOperation(
        "/search",
        "searchNames",
        "search",
        "Sites, campaigns, jobs, hosts, ROOT releases and tests by name",
        {"hits": "names that were found, at most 20 of each kind"},
        (Parameter("q", "Part of a name, or beginning of an identity.", _TEXT),),
    ),
    PageOperation(
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
