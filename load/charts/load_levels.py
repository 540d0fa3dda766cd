"""Levels of a campaign's load, their operations, and the parts of the chosen one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.operation_steps import CLIENT, SERVER
from treehammer.collectors.record.value_checks import is_variant
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import parse_axes
from treehammer.load.charts.load_charts import list_sides
from treehammer.load.operation_figures import (
    FindKey,
    OperationGroup,
    load_groupings,
    load_operations,
)
from treehammer.load.summary import describe_unread
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import Selection
from treehammer.text_formatting import JobRamp, pluralize
from treehammer.web.labels import label_variants
from treehammer.web.page_query import OneOf, PageQuery, PathText, Text

if TYPE_CHECKING:
    from treehammer.hctests.definition.toml_models import LoadTable

#: Columns of a measurement that :meth:`LevelFinder.find` needs.
LEVEL_COLUMNS = ("variant", "door", "site", "storage_site", "load_jobs")
#: Column for the latency without the round trip.
TRIP_COLUMN = "door_rtt_s"
#: Rows of operations that the page reads, and points of a figure over time.
MAX_ROWS, MAX_POINTS = 50_000, 240


class LoadQuery(PageQuery):
    """Parameters of the page of a load."""

    campaign_id: PathText = Field(description="Identity.")
    operation: Text = Field("", description="Name of an operation; by default the most frequent.")
    side: Annotated[str, OneOf((CLIENT, SERVER))] = Field("", description="Side that measured it.")
    load: Text = Field("", description="Value of the column load; by default the highest load.")


@dataclass(frozen=True)
class LoadLevel:
    """A load on a storage that all jobs of one variant make.

    Attributes:
        variant: axes and values as JSON.
        jobs: jobs that load at the same time after a step of the ramp; 0 without a ramp.
    """

    storage_site: str
    door: str
    variant: str
    jobs: int

    @property
    def id(self) -> str:
        """Short identity for addresses."""
        return hashlib.sha256(json.dumps(astuple(self)).encode()).hexdigest()[:10]

    @property
    def series(self) -> tuple[str, str, str]:
        """Storage, door and axes with text: levels that differ in numbers alone form a line."""
        return self.storage_site, self.door, _keep_texts(self.variant)


@lru_cache(maxsize=4096)
def _keep_texts(variant: str) -> str:
    if not is_variant(variant):
        return variant
    axes = parse_axes(variant)
    texts = {name: value for name, value in axes.items() if isinstance(value, str | bool)}
    return json.dumps(texts, sort_keys=True)


class LevelFinder:
    """Assigns the rows of operations to levels.

    Args:
        load: the load of the campaign's test; None if unknown.
    """

    def __init__(self, load: LoadTable | None) -> None:
        self._step_s = load.step_s if load else None
        self._ramp = JobRamp.parse(load.ramp, "[load] ramp") if load and load.ramp else None
        self._levels: dict[tuple[Any, ...], LoadLevel] = {}

    def find(self, row: Mapping[str, Any]) -> LoadLevel:
        """Return the level of a row with :data:`LEVEL_COLUMNS`."""
        storage = row["storage_site"] or ""
        key = (storage, row["door"] or "", row["variant"] or "", self._count_jobs(row))
        return self._levels.setdefault(key, LoadLevel(*key))

    def find_step_s(self, row: Mapping[str, Any]) -> float:
        """Return the length of steps; that of a row may be shorter, since it is the last."""
        return float(self._step_s or row["step_s"])

    def _count_jobs(self, row: Mapping[str, Any]) -> int:
        jobs = row["load_jobs"]
        if self._ramp is None or not jobs:
            return 0
        begun = int(row["step"] * self.find_step_s(row) // self._ramp.every_s) + 1
        return int(min(begun * self._ramp.jobs, jobs))


class LevelLabels:
    """Shortest distinguishing labels of levels."""

    def __init__(self, levels: Iterable[LoadLevel]) -> None:
        distinct = {*levels}
        self._storages = {level.storage_site for level in distinct}
        self._doors = {level.door for level in distinct}
        self.variants = label_variants(level.variant for level in distinct)
        self._texts = label_variants(level.series[2] for level in distinct)

    def label(self, level: LoadLevel) -> str:
        """Label a level."""
        is_needed = len(self.variants.names) > 1 or not level.jobs
        parts = [self.variants.label(level.variant)] if is_needed else []
        parts += [pluralize(level.jobs, "job")] if level.jobs else []
        return " · ".join([*self._place(level), *parts])

    def label_series(self, level: LoadLevel) -> str:
        """Label the line of a level."""
        texts = [self._texts.label(level.series[2])] if len(self._texts.names) > 1 else []
        return " · ".join([*self._place(level), *texts]) or "observed"

    def sort_key(self, level: LoadLevel) -> tuple[Any, ...]:
        """Sort by storage, door, axes as they count, and jobs."""
        variant = natural_sort_key(self.variants.label(level.variant))
        return (level.storage_site, level.door, variant, level.jobs)

    def _place(self, level: LoadLevel) -> list[str]:
        storage = [level.storage_site] if len(self._storages) > 1 else []
        return [*storage, level.door] if len(self._doors) > 1 else storage


def find_slowest(servers: Sequence[OperationGroup]) -> tuple[str, float, float] | None:
    """Find the server with the largest median latency in s, and its ratio to the smallest.

    A redirector may give a slow server as many operations as the others, so that rates do not show it.
    """
    medians = {
        str(server.key): server.latency.quantile(0.5)
        for server in servers
        if server.key and server.latency.count
    }
    if len(medians) < 2 or min(medians.values()) <= 0:
        return None
    slowest = max(medians, key=medians.__getitem__)
    return slowest, medians[slowest], medians[slowest] / min(medians.values())


def compute_evenness(servers: Sequence[OperationGroup]) -> tuple[str, float] | None:
    """Name the server with the smallest rate, and divide it by the largest; None for fewer than two."""
    identified = [server for server in servers if server.key]
    by_bytes = any(server.bytes for server in identified)
    # All are over the time of the level.
    rates = {str(server.key): server.bytes if by_bytes else server.done for server in identified}
    if len(rates) < 2 or max(rates.values()) <= 0:
        return None
    smallest = min(rates, key=rates.__getitem__)
    return smallest, rates[smallest] / max(rates.values())


@dataclass(frozen=True)
class LoadDetails:
    """Operations of a campaign: all levels, and the parts of the chosen one.

    Attributes:
        levels: all operations by level, in order.
        steps: its time steps, with number and start as key, in order.
        servers: its servers, in order of their names; their rates are over the time of the level.
        points: time steps merged into each of :attr:`steps`.
        sides: time steps by side, if both timed the operation.
        unread: sentence on files that the load left unread, if it did.
    """

    levels: Sequence[OperationGroup]
    selection: OperationGroup | None
    steps: Sequence[OperationGroup]
    servers: Sequence[OperationGroup]
    sites: Sequence[OperationGroup]
    labels: LevelLabels
    points: int
    sides: dict[str, list[OperationGroup]] = field(default_factory=dict)
    unread: Sequence[str] = ()

    def label(self, group: OperationGroup) -> str:
        """Label a level."""
        return self.labels.label(level_of(group))

    @property
    def similar(self) -> list[OperationGroup]:
        """Levels of the chosen operation and side."""
        selection = self.selection
        return [
            group
            for group in self.levels
            if selection and (group.operation, group.side) == (selection.operation, selection.side)
        ]

    def group_by_line(self) -> dict[str, list[OperationGroup]]:
        """Group the similar levels by the line that they form."""
        lines: dict[str, list[OperationGroup]] = {}
        for group in self.similar:
            lines.setdefault(self.labels.label_series(level_of(group)), []).append(group)
        return lines


def level_of(group: OperationGroup) -> LoadLevel:
    """Return the level of a group by level."""
    assert isinstance(group.key, LoadLevel)
    return group.key


def check_size(snapshot: DatabaseSnapshot, campaign: CampaignRow) -> None:
    """Refuse a campaign with more rows of operations than a page reads."""
    rows = snapshot.count_operation_rows(Selection((campaign.id,)))
    if rows > MAX_ROWS:
        raise ConfigError(
            f"the campaign has {rows} rows of operations, this page reads at most {MAX_ROWS}",
            hint=f"Use treehammer summary --campaign {campaign.id} --by step, which has no limit.",
        )


def load_details(
    snapshot: DatabaseSnapshot, campaign: CampaignRow, load: LoadTable | None, query: LoadQuery
) -> LoadDetails:
    """Read the operations of a campaign, and choose a level by the query."""
    selection = Selection((campaign.id,))
    finder = LevelFinder(load)
    levels = load_operations(
        snapshot, selection, columns=(*LEVEL_COLUMNS, TRIP_COLUMN), key=finder.find
    )
    labels = LevelLabels(map(level_of, levels))
    levels.sort(key=lambda level: (level.operation, level.side, labels.sort_key(level_of(level))))
    group = _choose_level(levels, query)
    if group is None:
        return LoadDetails([], None, [], [], [], labels, 1)
    points = max(-(-int(load.duration_s // load.step_s) // MAX_POINTS), 1) if load else 1

    def is_same(row: Mapping[str, Any]) -> bool:
        return row["operation"] == group.operation and finder.find(row) == group.key

    def find_by(column: str) -> FindKey:
        return lambda row: (
            str(row[column] or "") if row["side"] == group.side and is_same(row) else None
        )

    def find_step(row: Mapping[str, Any]) -> tuple[int, float] | None:
        first, is_due = row["step"] // points * points, row["clients"] or row["side"] != CLIENT
        return (first, first * finder.find_step_s(row)) if is_due and is_same(row) else None

    keys = (find_step, find_by("server"), find_by("site"))
    steps, servers, sites = load_groupings(snapshot, selection, keys, columns=LEVEL_COLUMNS)
    steps.sort(key=lambda step: step.key)  # type: ignore[arg-type,return-value]
    return LoadDetails(
        levels=levels,
        selection=group,
        steps=[step for step in steps if step.side == group.side],
        servers=sorted(servers, key=lambda server: natural_sort_key(str(server.key))),
        sites=sorted(sites, key=lambda site: str(site.key)),
        labels=labels,
        points=points,
        sides=list_sides(steps),
        unread=list(describe_unread(snapshot, selection)),
    )


def _choose_level(levels: Sequence[OperationGroup], query: LoadQuery) -> OperationGroup | None:
    """Choose by the parameters, else the operation with the most and the highest load."""
    if not levels:
        return None
    matching = list(levels)
    choices: Mapping[str, Callable[[OperationGroup], str]] = {
        "operation": lambda level: level.operation,
        "side": lambda level: level.side,
        "load": lambda level: level_of(level).id,
    }
    for name, find in choices.items():
        query.require_choice(name, map(find, matching))
        value = getattr(query, name)
        matching = [level for level in matching if value in ("", find(level))]
    # Packets of a server outnumber the operations of any load.
    busiest = max(matching, key=lambda level: (level.side == CLIENT, level.scheduled))
    candidates = [
        level
        for level in matching
        if (level.operation, level.side) == (busiest.operation, busiest.side)
    ]
    return max(candidates, key=lambda level: (level.attempted_hz or 0.0, level.limited_steps))
