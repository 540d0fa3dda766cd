"""Operations of a campaign's load: all levels, and the parts of the chosen one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.requests import Request

from treehammer.collectors.record.operation_steps import CLIENT
from treehammer.errors import ConfigError
from treehammer.hctests.matrix.load_settings import LoadSettings
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.read.operation_figures import (
    OperationGroup,
    fetch_groupings,
    fetch_operations,
)
from treehammer.web.views.load.load_levels import (
    LEVEL_COLUMNS,
    TRIP_COLUMN,
    LevelFinder,
    LevelLabels,
    LoadLevel,
    ServerShare,
    make_detail_keys,
    share_among_servers,
)
from treehammer.web.views.load.side_comparison import list_sides

#: Rows of operations that the page reads, and points of a figure over time.
MAX_ROWS, MAX_POINTS = 50_000, 240


@dataclass(frozen=True)
class LoadDetails:
    """Operations of a campaign: all levels, and the parts of the chosen one.

    Attributes:
        levels: all operations by level, in order.
        chosen: the chosen level and operation; None without any.
        steps: its time steps, with number and start as key, in order.
        servers: its servers.
        sites: sites of its jobs.
        labels: labels of the levels.
        points: time steps merged into each of :attr:`steps`.
        sides: time steps by side, if both timed the operation.
    """

    levels: Sequence[OperationGroup]
    chosen: OperationGroup | None
    steps: Sequence[OperationGroup]
    servers: Sequence[ServerShare]
    sites: Sequence[OperationGroup]
    labels: LevelLabels
    points: int
    sides: dict[str, list[OperationGroup]] = field(default_factory=dict)

    def label(self, group: OperationGroup) -> str:
        """Label a level."""
        return self.labels.label(level_of(group))

    @property
    def similar(self) -> list[OperationGroup]:
        """Levels of the chosen operation and side."""
        chosen = self.chosen
        return [
            group
            for group in self.levels
            if chosen and (group.operation, group.side) == (chosen.operation, chosen.side)
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


def load_details(
    snapshot: DatabaseSnapshot, campaign: CampaignRow, load: LoadSettings | None, request: Request
) -> LoadDetails:
    """Read the operations of a campaign, and choose a level by the request's parameters.

    Raises:
        ConfigError: a parameter names nothing of the campaign, or its operations are too many.
    """
    selection = Selection((campaign.id,))
    rows = snapshot.count_operation_rows(selection)
    if rows > MAX_ROWS:
        raise ConfigError(
            f"the campaign has {rows} rows of operations, this page reads at most {MAX_ROWS}",
            hint=f"Use treehammer summary --campaign {campaign.id} --by step, which has no limit.",
        )
    finder = LevelFinder(load)
    levels = fetch_operations(
        snapshot, selection, columns=(*LEVEL_COLUMNS, TRIP_COLUMN), key=finder.find
    )
    labels = LevelLabels(level_of(level) for level in levels)
    levels.sort(key=lambda level: (level.operation, level.side, labels.sort_key(level_of(level))))
    chosen = _choose_level(levels, request)
    if chosen is None:
        return LoadDetails([], None, [], [], [], labels, 1)
    points = -(-int(load.duration_s // load.step_s) // MAX_POINTS) if load else 1
    keys = make_detail_keys(finder, chosen, max(points, 1))
    steps, servers, sites, both = fetch_groupings(snapshot, selection, keys, columns=LEVEL_COLUMNS)
    both.sort(key=lambda step: step.key)  # type: ignore[arg-type,return-value]
    return LoadDetails(
        levels=levels,
        chosen=chosen,
        steps=sorted(steps, key=lambda step: step.key),  # type: ignore[arg-type,return-value]
        servers=share_among_servers(chosen, servers),
        sites=sorted(sites, key=lambda site: str(site.key)),
        labels=labels,
        points=max(points, 1),
        sides=list_sides(both),
    )


def _choose_level(levels: Sequence[OperationGroup], request: Request) -> OperationGroup | None:
    """Choose by the parameters, else the operation with the most and the highest load.

    Raises:
        ConfigError: nothing has the values of the parameters.
    """
    if not levels:
        return None
    matching = list(levels)
    choices: Mapping[str, Callable[[OperationGroup], str]] = {
        "operation": lambda level: level.operation,
        "side": lambda level: level.side,
        "load": lambda level: level_of(level).id,
    }
    for name, find in choices.items():
        requested = request.query_params.get(name)
        if not requested:
            continue
        matching = [level for level in matching if find(level) == requested]
        if not matching:
            known_values = ", ".join(dict.fromkeys(map(find, levels)))
            raise ConfigError(
                f"{name} cannot be {requested[:40]!r} here", hint=f"Known: {known_values}."
            )
    busiest = max(matching, key=_count_operations)
    candidates = [
        level
        for level in matching
        if (level.operation, level.side) == (busiest.operation, busiest.side)
    ]
    return max(candidates, key=lambda level: (level.attempted_hz or 0.0, level.limited_steps))


def _count_operations(group: OperationGroup) -> tuple[bool, int]:
    # Packets of a server outnumber the operations of any load.
    return group.side == CLIENT, group.scheduled
