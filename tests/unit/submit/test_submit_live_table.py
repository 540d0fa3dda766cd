"""The table of a campaign as it goes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from treehammer.submit.cli import live_progress
from treehammer.submit.tracking.tracker import TrackingProgress

PROGRESS = TrackingProgress(
    {"SITE_A": {"running": 2, "done": 3}, "[red]SITE_B[/red]": {"queued": 5}},
    finished_measurements=6,
    planned_measurements=20,
    failures={"SITE_A": {"open": 2}},
    remaining_s=600.0,
)


def test_sites_by_states_with_failures_and_the_expected_end() -> None:
    screen = Console(file=io.StringIO(), width=100)
    screen.print(live_progress._progress_table("my campaign", PROGRESS))
    assert isinstance(screen.file, io.StringIO)
    lines = [line.split() for line in screen.file.getvalue().splitlines()]
    assert lines[0] == ["my", "campaign"]
    assert lines[1] == ["site", "queued", "running", "done", "cancelled", "lost", "failed"]
    assert lines[2] == ["SITE_A", "0", "2", "3", "0", "0", "2", "open"]
    assert lines[3] == ["[red]SITE_B[/red]", "5", "0", "0", "0", "0", "–"]
    assert lines[4][:5] == ["6", "of", "20", "measurements", "are"]


def test_the_end_is_told_with_a_day_when_it_is_far() -> None:
    near = live_progress.summarize_progress(PROGRESS, 1_800_000_000.0)
    assert near.startswith("6 of 20 measurements are over, about 10 min to go at the pace so far: ")
    far = TrackingProgress(PROGRESS.states, 6, 20, {}, 3 * 86400.0)
    assert "2027-01-18" in live_progress.summarize_progress(far, 1_800_000_000.0)
    assert (
        live_progress.summarize_progress(TrackingProgress({}, 0, 20, {}, None))
        == "0 of 20 measurements are over"
    )


def test_held_jobs_have_a_column_when_there_are_some() -> None:
    assert "held" not in live_progress.visible_states(PROGRESS)
    assert "held" in live_progress.visible_states(
        TrackingProgress({"A": {"held": 1}}, 0, 1, {}, None)
    )


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with live_progress.live_display("c", 20) as show:
        show(PROGRESS)
    assert capsys.readouterr().out == ""
