"""A campaign as it goes: sites × states with counts, failures and the expected end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from treehammer.collectors.job_state import JobState
from treehammer.submit.tracking.tracker import TrackingProgress
from treehammer.terminal import make_console, progress_bar
from treehammer.text_formatting import format_duration, pluralize

#: Receives how far a campaign is.
ShowProgress = Callable[[TrackingProgress], None]

#: Clock times are told without a day when the end is nearer.
_SAME_DAY_S = 20 * 3600


def summarize_progress(progress: TrackingProgress, now_s: float | None = None) -> str:
    """One line: how many measurements are over, and when the last is expected to be.

    Args:
        progress: how far the campaign is.
        now_s: seconds since 1970; the present by default.
    """
    text = (
        f"{progress.finished_measurements} of {progress.planned_measurements} measurements are over"
    )
    if progress.remaining_s is None:
        return text
    end = time.localtime((time.time() if now_s is None else now_s) + progress.remaining_s)
    clock = time.strftime("%H:%M" if progress.remaining_s < _SAME_DAY_S else "%Y-%m-%d %H:%M", end)
    return (
        f"{text}, about {format_duration(progress.remaining_s)} to go at the pace so far: {clock}"
    )


def visible_states(progress: TrackingProgress) -> list[str]:
    """The states that have a column: all but held, which is seldom, when no job is in it."""
    held = any(states.get(JobState.HELD.value) for states in progress.states.values())
    return [state.value for state in JobState if held or state is not JobState.HELD]


def format_counts(values: dict[str, int]) -> str:
    """``2 lost, 1 held``; a dash for none."""
    return ", ".join(f"{count} {name}" for name, count in values.items()) or "–"


def _progress_table(name: str, progress: TrackingProgress) -> Group:
    table = Table(box=None, pad_edge=False, header_style="bold")
    states = visible_states(progress)
    table.add_column("site")
    for state in states:
        table.add_column(state, justify="right")
    table.add_column("failed", overflow="fold")
    for site, found in progress.states.items():
        cells = [str(found.get(state, 0)) for state in states]
        failures = format_counts(dict(progress.failures.get(site, {})))
        table.add_row(*map(Text, (site, *cells, failures)))
    return Group(Text(name), table, Text(summarize_progress(progress)))


@contextmanager
def live_display(name: str, planned: int) -> Iterator[ShowProgress]:
    """Show a campaign while the block runs.

    On a terminal a table that changes in its place; otherwise a line at each tenth, on standard error.

    Args:
        name: of the campaign.
        planned: measurements.
    """
    screen = make_console()
    if not screen.is_terminal:
        with progress_bar("Measuring", planned) as step:
            yield lambda progress: step(progress.finished_measurements, progress.describe_jobs())
        return
    waiting = Text(f"{name}: {pluralize(planned, 'measurement')} planned")
    with Live(waiting, console=screen, transient=True, auto_refresh=False) as live:
        yield lambda progress: live.update(_progress_table(name, progress), refresh=True)
