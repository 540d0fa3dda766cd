"""Rows of measurements with the headline metrics that their tests state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from treehammer.analysis.statistics.verdict import share_error_rate
from treehammer.collectors.job_spec import CHECKSUM, TIMED
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.hctests.definition.judged_metrics import (
    COMMAND_HEADLINE,
    HeadlineMetric,
    find_headline_metric,
)
from treehammer.hctests.definition.model import ANY_COMMAND
from treehammer.sql.core.campaign_plan import CampaignPlan, SequentialPlan
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.verticals import import_parts

Row = dict[str, Any]
_Headline = tuple[HeadlineMetric, ...]
#: Rows between two reports of progress.
_PROGRESS_ROWS = 1000


def load_headline_rows(
    store: ResultsReader,
    selection: Selection,
    columns: Sequence[str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Row]:
    """Load measurements with the headline and exact metrics of their tests.

    Rows of tests that state a headline have the keys ``headline`` and its names; those of tests with
    exact metrics have the keys ``exact_metrics`` (name -> better direction, '' for none) and their
    names. Neither is part of a test's identity: of several campaigns of a test, the newest one that
    states any of them decides for all. Rows of campaigns that end when they are decided have the key
    ``looks`` and ``look_share``.

    Args:
        store: the database.
        selection: the measurements.
        columns: catalogue columns, of them ``campaign_id``, ``test_hash`` and ``measurement_id``.
        on_progress: called regularly with the number of rows read; its exceptions end the reading.
    """
    statements = _parse_plans(campaign_queries.load_plans_with_own_metrics(store))
    metrics = {metric for statement in statements.values() for metric in statement.headline}
    metric_names = [
        metric.name for metric in metrics if not metric.figure and metric.name in METRICS_BY_NAME
    ]
    requested = tuple(dict.fromkeys((*columns, *sorted(metric_names))))
    with store.snapshot() as snapshot:
        rows: list[Row] = []
        for measured in snapshot.measurements(selection, requested):
            rows.append(measured)
            if len(rows) % _PROGRESS_ROWS == 0:
                on_progress(len(rows))
        owners = _add_statements(rows, statements)
        if owners:
            _add_own_metrics(snapshot, selection, owners)
            _add_figures(snapshot, selection, owners)
    _add_looks(store, rows)
    return rows


def _add_looks(store: ResultsReader, rows: Sequence[Row]) -> None:
    by_campaign: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_campaign[str(row["campaign_id"])].append(row)
    sequential = campaign_queries.load_sequential_plans(store, by_campaign)
    for id_, plan in sequential.items():
        share = find_look_share(plan, by_campaign[id_])
        for row in by_campaign[id_]:
            row.update(looks=len(plan.looks), look_share=share)


def find_look_share(plan: SequentialPlan | None, rows: Iterable[Row]) -> float:
    """Find the share of the error rate that the last look at a campaign has, from all of its rows."""
    repeats = max((row["repeat"] for row in rows if row["kind"] == TIMED), default=0)
    return share_error_rate(plan.looks, repeats) if plan else 1.0


def load_metric_rows(
    store: ResultsReader,
    selection: Selection,
    columns: Sequence[str],
    metrics: Sequence[HeadlineMetric],
) -> list[Row]:
    """Load measurements with these metrics in place of the headline of their tests.

    Args:
        store: the database.
        selection: the measurements.
        columns: catalogue columns, of them ``campaign_id`` and ``measurement_id``.
        metrics: metrics of the catalogue, of a test's own, or figures of operations.
    """
    names = [metric.name for metric in metrics if metric.name in METRICS_BY_NAME]
    with store.snapshot() as snapshot:
        rows: list[Row] = list(snapshot.measurements(selection, tuple({*columns, *names})))
        for row in rows:
            row["headline"], row["exact_metrics"] = tuple(metrics), {}
        _add_own_metrics(snapshot, selection, rows)
        _add_figures(snapshot, selection, rows)
    return rows


def load_earlier_checksums(
    store: ResultsReader, rows: Iterable[Row], columns: Sequence[str]
) -> list[Row]:
    """Load the checksum executions of earlier campaigns that the campaigns of some rows rely on.

    Args:
        store: the database.
        rows: of :func:`load_headline_rows`.
        columns: those of the rows.
    """
    present = {str(row["campaign_id"]) for row in rows}
    sequential = campaign_queries.load_sequential_plans(store, present)
    earlier = {plan.checksums for plan in sequential.values()}
    missing = sorted(earlier - present - {""})
    if not missing:
        return []
    return load_headline_rows(store, Selection.parse(missing, [f"kind={CHECKSUM}"]), columns)


@dataclass(frozen=True)
class _Statement:
    """Headline metrics of a test, and its exact ones with their better direction."""

    headline: _Headline
    exact: Mapping[str, str]


def _parse_plans(plans: Iterable[tuple[str, CampaignPlan]]) -> dict[str, _Statement]:
    """Map campaigns, the newest first, to statements; names that are unknown here are left out."""
    statements = {}
    for campaign, plan in plans:
        declared = plan.definition.own_metrics
        definition, headline = plan.definition, list[HeadlineMetric]()
        for name in definition.headline:
            with suppress(KeyError, ValueError):  # stated in another version
                is_load = definition.load is not None
                headline.append(find_headline_metric(name, declared, is_load=is_load))
        if not headline and definition.payload == ANY_COMMAND:
            headline.extend(COMMAND_HEADLINE)
        exact = {
            name: metric.better
            for name, metric in declared.items()
            if metric.exact and name not in METRICS_BY_NAME
        }
        if headline or exact:
            statements[campaign] = _Statement(tuple(headline), exact)
    return statements


def _add_statements(rows: Sequence[Row], by_campaign: Mapping[str, _Statement]) -> list[Row]:
    """Add the statement of each test's newest campaign to its rows; return these rows."""
    tests: dict[str, set[str]] = {}
    for row in rows:
        tests.setdefault(row["campaign_id"], set()).add(row["test_hash"])
    statements: dict[str, _Statement] = {}
    for campaign, statement in by_campaign.items():
        for test in tests.get(campaign, ()):
            statements.setdefault(test, statement)
    owners = [row for row in rows if row["test_hash"] in statements]
    for row in owners:
        statement = statements[row["test_hash"]]
        row["exact_metrics"] = statement.exact
        if statement.headline:
            row["headline"] = statement.headline
    return owners


def _add_own_metrics(
    snapshot: DatabaseSnapshot, selection: Selection, owners: Sequence[Row]
) -> None:
    names = {metric.name for row in owners for metric in row.get("headline", ())}
    names |= {name for row in owners for name in row["exact_metrics"]}
    names -= METRICS_BY_NAME.keys()
    if names:
        add_extras(owners, names, snapshot.extras(selection))


def add_extras(rows: Iterable[Row], names: Collection[str], extras: Iterable[ExtraRow]) -> None:
    """Add metrics that tests define, of these names, to the rows of their measurements."""
    by_id = {row["measurement_id"]: row for row in rows}
    for extra in extras:
        if extra.name in names and extra.measurement_id in by_id:
            by_id[extra.measurement_id][extra.name] = extra.value


def _add_figures(snapshot: DatabaseSnapshot, selection: Selection, owners: Sequence[Row]) -> None:
    owners = [row for row in owners if any(metric.figure for metric in row.get("headline", ()))]
    if not owners:
        return
    campaigns = tuple(dict.fromkeys(str(row["campaign_id"]) for row in owners))
    for row in owners:
        row.update({metric.name: None for metric in row["headline"] if metric.figure})
    for part in import_parts("operation_figures"):
        part.add_figures(snapshot, Selection(campaigns, selection.conditions), owners)
