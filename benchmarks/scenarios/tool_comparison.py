"""False alarms, power and cost of Treehammer and other tools on the same work, in one run.

Each tool gets the same time. Rows are appended to ``data/peers.csv``, so that a benchmark that
was stopped goes on later.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from benchmarks.harness.figures import (
    DATA_FOLDER,
    RatioFigure,
    append_rows,
    plot_points,
    read_rows,
    share_figure,
)
from benchmarks.scenarios.paired_launches import choose_label
from benchmarks.scenarios.peer_tools import (
    SCENARIOS,
    TOOLS,
    PeerEnvironment,
    PeerScenario,
    ToolResult,
)
from treehammer.analysis.statistics.verdict import Verdict

TABLE_FILE = DATA_FOLDER / "peers.csv"
#: Limit of a run.
DEFAULT_SECONDS = 840.0
#: Verdicts that report a change; all other verdicts report none.
SLOWER_VERDICTS = (Verdict.SLOWER, Verdict.DIFFERENT)
ALARMS = (*SLOWER_VERDICTS, Verdict.FASTER)


@dataclass(frozen=True)
class PeerVerdict:
    """One comparison by one tool, judged by one rule.

    ``planted`` is the additional CPU time of side B, NaN between releases. ``seconds`` is the wall
    time until all verdicts of the comparison, ``read_bytes`` the bytes of one pass as reported by
    the tool.
    """

    label: str
    started: str
    load1: float
    tool: str
    rule: str
    scenario: str
    planted: float
    effect: float
    verdict: str
    seconds: float
    read_bytes: float

    @property
    def is_alarm(self) -> bool:
        """Whether a change is reported."""
        return self.verdict in ALARMS

    @property
    def finds_slowdown(self) -> bool:
        """Whether a slowdown is reported."""
        return self.verdict in SLOWER_VERDICTS and self.effect > 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``python -m benchmarks peers``."""
    group = parser.add_argument_group("peers")
    group.add_argument(
        "--peer-seconds",
        type=float,
        default=DEFAULT_SECONDS,
        help="start no comparison that would end after this time (%(default)g)",
    )
    group.add_argument(
        "--peer-tools", nargs="+", choices=list(TOOLS), default=list(TOOLS), help="tools (all)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Compare by each tool in turn until the time is over; return the figures of all rows."""
    # Installation counts as load, and so does the run itself.
    label = choose_label(options)
    start = time.monotonic()
    environment = PeerEnvironment.prepare()
    # Tools that are slower here than in other runs still end in time.
    spent: dict[str, list[float]] = {tool: [] for tool in options.peer_tools}
    while tool := choose_tool(spent, options.peer_seconds - (time.monotonic() - start)):
        rows = read_rows(TABLE_FILE, PeerVerdict)
        scenario = choose_scenario(rows, tool, label)
        verdicts = _compare(environment, tool, scenario, label)
        append_rows(TABLE_FILE, verdicts)
        spent[tool].append(verdicts[0].seconds)
        for row in verdicts:
            print(
                f"{row.tool}, {row.rule}: {row.scenario}, {100 * row.effect:+.2f} % {row.verdict}, "
                f"{row.seconds:.0f} s, load {row.load1:.1f}",
                flush=True,
            )
    rows = read_rows(TABLE_FILE, PeerVerdict)
    _plot_errors(rows)
    return list(build_figures(rows))


def choose_tool(spent: Mapping[str, Sequence[float]], seconds_left: float) -> str:
    """Choose the tool that used the least time; '' if no comparison would end in time."""
    fitting = {
        tool: sum(times) for tool, times in spent.items() if max(times, default=0.0) <= seconds_left
    }
    if seconds_left <= 0 or not fitting:
        return ""
    return min(fitting, key=fitting.__getitem__)


def choose_scenario(rows: Iterable[PeerVerdict], tool: str, label: str) -> PeerScenario:
    """Choose the scenario that the tool has judged least often."""
    counts = Counter(row.scenario for row in rows if (row.tool, row.label) == (tool, label))
    return min(SCENARIOS, key=lambda scenario: counts[scenario.name])


def _compare(
    environment: PeerEnvironment, tool: str, scenario: PeerScenario, label: str
) -> list[PeerVerdict]:
    started, load = datetime.now(UTC), os.getloadavg()[0]
    start = time.monotonic()
    result: ToolResult = TOOLS[tool](environment, scenario)
    elapsed_s = time.monotonic() - start
    seconds = elapsed_s if math.isnan(result.seconds) else result.seconds
    return [
        PeerVerdict(
            label=label,
            started=started.isoformat(timespec="seconds"),
            load1=round(load, 2),
            tool=tool,
            rule=judgement.rule,
            scenario=scenario.name,
            planted=round(result.planted, 5),
            effect=round(judgement.effect, 6),
            verdict=judgement.verdict,
            seconds=round(seconds, 2),
            read_bytes=result.read_bytes,
        )
        for judgement in result.judgements
    ]


def build_figures(rows: Sequence[PeerVerdict]) -> Iterator[RatioFigure]:
    """Summarize all rows by label, tool and rule."""
    groups: dict[tuple[str, str, str], list[PeerVerdict]] = defaultdict(list)
    for row in rows:
        groups[row.label, row.tool, row.rule].append(row)
    for (label, tool, rule), verdicts in groups.items():
        title = f"{label}: {tool}, {rule}"
        for scenario in SCENARIOS:
            of_scenario = [row for row in verdicts if row.scenario == scenario.name]
            if of_scenario and not math.isnan(scenario.planted):
                yield _share_figure(title, scenario, of_scenario)
        if errors := _effect_errors(verdicts):
            rms = float(np.sqrt(np.mean(np.square(errors))))
            yield RatioFigure(f"{title}: rms of measured − planted", rms, pairs=len(errors))
    yield from _cost_figures(rows)


def _cost_figures(rows: Sequence[PeerVerdict]) -> Iterator[RatioFigure]:
    costs: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        costs[row.label, row.tool][row.started] = row.seconds
    for (label, tool), seconds in costs.items():
        value = float(np.median(list(seconds.values())))
        yield RatioFigure(f"{label}: {tool}: seconds per verdict", value, pairs=len(seconds))


def _share_figure(title: str, scenario: PeerScenario, rows: Sequence[PeerVerdict]) -> RatioFigure:
    if not scenario.planted:
        count = sum(row.is_alarm for row in rows)
        return share_figure(f"{title}: false alarms", count, len(rows))
    count = sum(row.finds_slowdown for row in rows)
    return share_figure(f"{title}: {scenario.name} found", count, len(rows))


def _effect_errors(rows: Iterable[PeerVerdict]) -> list[float]:
    """Return the differences of the measured and the planted ln(B/A)."""
    return [
        row.effect - math.log1p(row.planted)
        for row in rows
        if not math.isnan(row.effect) and not math.isnan(row.planted)
    ]


def _plot_errors(rows: Sequence[PeerVerdict]) -> None:
    groups: dict[str, list[PeerVerdict]] = defaultdict(list)
    for row in rows:
        groups[f"{row.tool}, {row.rule} ({row.label})"].append(row)
    series = {
        name: [100 * error for error in errors]
        for name, verdicts in groups.items()
        if (errors := _effect_errors(verdicts))
    }
    if series:
        label = "measured − planted, 100 ln(B/A)"
        plot_points("peers", "The same comparisons by five tools", label, series, reference=0.0)
