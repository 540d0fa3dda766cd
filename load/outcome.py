"""What the status of a campaign says about its load: limits, and the spread of starts that were to be common."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treehammer.collectors.job_spec import ALONE, LATE, MAX_START_SPREAD_S
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.text_formatting import format_share, pluralize

if TYPE_CHECKING:
    # pydantic takes long to load, and the status of a campaign needs no rules.
    from treehammer.hctests.definition.toml_models import LoadTable

#: Common starts described one by one; of more, only those that are not good.
MAX_SHOWN_STARTS = 10


def describe_campaign(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield a line for each common start and each limit of a campaign's loads."""
    yield from describe_starts(store, campaign)
    yield from describe_limits(store, campaign)


def describe_limits(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield a line for each load whose limit was not the storage, and one for files left unread."""
    if campaign.plan.definition.load_test is None:
        return
    # Imported here: it is slow to load, and few campaigns are load tests.
    from treehammer.load.summary import list_limited_loads

    with store.snapshot() as snapshot:
        yield from list_limited_loads(snapshot, Selection((campaign.id,)))


def describe_starts(store: ResultsReader, campaign: CampaignRow) -> Iterator[str]:
    """Yield a line for each common start of a campaign, and one for loads without any."""
    spreads, lonely = summarize_campaign_starts(store, campaign)
    if len(spreads) > MAX_SHOWN_STARTS:
        good = [start_spread for start_spread in spreads if start_spread.judgment == "good"]
        yield f"{len(good)} of {len(spreads)} common starts are good"
        spreads = [start_spread for start_spread in spreads if start_spread not in good][
            :MAX_SHOWN_STARTS
        ]
    for spread in spreads:
        when = time.strftime("%H:%M:%SZ", time.gmtime(spread.start_us / 1e6))
        yield f"start {when} {spread.describe()}"
    if lonely:
        yield f"start bad: {pluralize(lonely, 'measurement')} began alone; see logs/worker.err"


def summarize_campaign_starts(
    store: ResultsReader, campaign: CampaignRow
) -> tuple[list[StartSpread], int]:
    """Summarize the common starts of a campaign, and count the loads without one."""
    load = campaign.plan.definition.load_test
    if load is None or not load.together:
        return [], 0
    rows = list(store.measurements(Selection((campaign.id,)), START_COLUMNS))
    return summarize_starts(rows, load), count_lonely_starts(rows)


#: Columns of a measurement that :func:`summarize_starts` needs.
START_COLUMNS = (
    "job_id",
    "attempt",
    "round",
    "position",
    "failure_class",
    "load_index",
    "load_jobs",
    "start_state",
    "start_planned_us",
    "start_offset_s",
    "clock_error_s",
)

_Row = Mapping[str, Value]


@dataclass(frozen=True)
class StartSpread:
    """Real starts after one common start.

    Attributes:
        start_us: the common start, microseconds since 1970 UTC.
        jobs: planned jobs.
        started: jobs that began their load.
        late: those of them that began too late, by up to ``latest_s``.
        spread_s: time between the first and the last real start, each from the start of its level;
            None if fewer than two are known.
        clock_error_s: the largest error of a node's clock; 0 if all jobs share one.
        missing_load: share of the planned load that late and absent jobs did not deliver.
    """

    start_us: int
    jobs: int
    started: int
    late: int
    latest_s: float
    spread_s: float | None
    clock_error_s: float
    missing_load: float

    @property
    def judgment(self) -> str:
        """``good`` if all jobs started within the spread of study S4, ``bad`` or ``unclear``."""
        spread_s = 0.0 if self.jobs == 1 else self.spread_s
        if self.late or self.started < self.jobs:
            return "bad"
        if spread_s is None:
            return "unclear"
        if spread_s + 2 * self.clock_error_s <= MAX_START_SPREAD_S:
            return "good"
        # Each of two clocks may be wrong by its error.
        return "bad" if spread_s - 2 * self.clock_error_s > MAX_START_SPREAD_S else "unclear"

    def describe(self) -> str:
        """Describe the starts in one line."""
        spread = "unknown" if self.spread_s is None else f"{1000 * self.spread_s:.0f} ms"
        clocks = f", clocks within {1000 * self.clock_error_s:.1f} ms" * bool(self.clock_error_s)
        parts = [
            f"{self.started} of {self.jobs} jobs started together, spread {spread} (at most "
            f"{1000 * MAX_START_SPREAD_S:.0f} ms{clocks})"
        ]
        if self.late:
            parts.append(f"{self.late} late, by up to {self.latest_s:.1f} s")
        if self.missing_load > 0.0005:
            parts.append(f"{format_share(self.missing_load, 1)} of the load missing")
        return f"{self.judgment}: {'; '.join(parts)}"


def summarize_starts(rows: Iterable[_Row], load: LoadTable) -> list[StartSpread]:
    """Summarize each common start of a campaign, in order of time.

    Args:
        rows: the campaign's measurements with :data:`START_COLUMNS`.
        load: of its test.
    """
    groups: dict[int, list[_Row]] = defaultdict(list)
    for row in _select_last_attempts(rows):
        if row["start_planned_us"] is not None:
            groups[int(str(row["start_planned_us"]))].append(row)
    return [_summarize_start(start_us, groups[start_us], load) for start_us in sorted(groups)]


def count_lonely_starts(rows: Iterable[_Row]) -> int:
    """Count the measurements whose load began without a common start."""
    return sum(row["start_state"] == ALONE for row in _select_last_attempts(rows))


def _select_last_attempts(rows: Iterable[_Row]) -> Iterator[_Row]:
    last: dict[tuple[Value, ...], _Row] = {}
    for row in rows:
        key = (row["job_id"], row["round"], row["position"])
        if row["load_index"] is not None and _number(row, "load_index") >= _number(
            row, "load_jobs"
        ):
            continue  # A watch loads nothing.
        if key not in last or _number(row, "attempt") > _number(last[key], "attempt"):
            last[key] = row
    yield from last.values()


def _summarize_start(start_us: int, rows: Sequence[_Row], load: LoadTable) -> StartSpread:
    jobs = int(_number(rows[0], "load_jobs"))
    started = [row for row in rows if row["failure_class"] in (None, "")]
    offsets = [
        _number(row, "start_offset_s") for row in started if row["start_offset_s"] is not None
    ]
    late = [row for row in started if row["start_state"] == LATE]
    return StartSpread(
        start_us=start_us,
        jobs=jobs,
        started=len(started),
        late=len(late),
        latest_s=max((_number(row, "start_offset_s") for row in late), default=0.0),
        spread_s=max(offsets) - min(offsets) if len(offsets) > 1 else None,
        clock_error_s=max((_number(row, "clock_error_s") for row in started), default=0.0),
        missing_load=_missing_load(started, jobs, load),
    )


def _missing_load(started: Iterable[_Row], jobs: int, load: LoadTable) -> float:
    """Return the share of the planned load that late and absent jobs did not deliver."""
    planned = sum(_planned_s(load, index) for index in range(jobs))
    delivered = sum(
        _planned_s(load, int(_number(row, "load_index"))) - max(0.0, _number(row, "start_offset_s"))
        for row in started
    )
    return max(0.0, 1 - delivered / planned) if planned > 0 else 0.0


def _planned_s(load: LoadTable, index: int) -> float:
    return max(0.0, load.duration_s - load.level_start_s(index))


def _number(row: _Row, name: str) -> float:
    value = row[name]
    return float(value) if isinstance(value, int | float) else 0.0
