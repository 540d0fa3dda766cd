"""Live table of a running campaign."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace

import pytest
from rich.console import Console

from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
from treehammer.submit.cli import unfinished_campaigns

PROGRESS = CampaignCount(
    {
        "SITE_A": MeasurementCount(
            Counter({"running": 2, "done": 3}), 10, Counter({"good": 4, "open": 2})
        ),
        "[red]SITE_B[/red]": MeasurementCount(Counter({"queued": 5}), 10),
    },
    remaining_s=600.0,
)
NOTHING_DONE = CampaignCount({"A": MeasurementCount(planned=20)})


def test_table_shows_states_failures_and_summary() -> None:
    output = io.StringIO()
    Console(file=output, width=100).print(
        unfinished_campaigns._progress_table("my campaign", PROGRESS)
    )
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert lines[0] == ["my", "campaign"]
    states = ["site", "queued", "running", "done", "cancelled", "lost"]
    assert lines[1] == [*states, "failed"]
    assert lines[2] == ["SITE_A", "0", "2", "3", "0", "0", "2", "open"]
    assert lines[3] == ["[red]SITE_B[/red]", "5", "0", "0", "0", "0", "–"]
    assert lines[4][:8] == ["6", "of", "20", "measured", "(2", "of", "them", "failed),"]


def test_summary_names_day_of_distant_end() -> None:
    now_s = 1_800_000_000.0
    near = unfinished_campaigns.summarize_progress(PROGRESS, now_s)
    assert near.startswith("6 of 20 measured (2 of them failed), about 10 min left, until ")
    distant = replace(PROGRESS, remaining_s=3 * 86400.0)
    assert "2027-01-18" in unfinished_campaigns.summarize_progress(distant, now_s)
    assert unfinished_campaigns.summarize_progress(NOTHING_DONE) == "0 of 20 measured"


def test_numbers_of_the_summary_add_up_to_the_planned_ones() -> None:
    missing = Counter({"cancelled": 9, "lost": 1})
    ended = CampaignCount({"A": MeasurementCount(Counter(), 16, Counter(good=4, open=2), missing)})
    text = unfinished_campaigns.summarize_progress(ended)
    assert text == "6 of 16 measured (2 of them failed), 9 cancelled, 1 lost"


def test_held_column_appears_with_held_jobs() -> None:
    assert "held" not in unfinished_campaigns.visible_states(PROGRESS)
    with_held = CampaignCount({"A": MeasurementCount(Counter(held=1))})
    assert "held" in unfinished_campaigns.visible_states(with_held)


def test_pipe_gets_a_line_per_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with unfinished_campaigns.live_display("c", 20) as show:
        for progress in (NOTHING_DONE, NOTHING_DONE, PROGRESS, PROGRESS):
            show(progress)
        name, *lines = capsys.readouterr().out.splitlines()
        assert name == "c"
        assert [line.partition(" ")[2].partition(" measured")[0] for line in lines] == [
            ": 0 of 20",
            "5 queued, 2 running, 3 done, 2 failed: 6 of 20",
        ]
        monkeypatch.setattr(unfinished_campaigns, "QUIET_S", 0.0)
        show(PROGRESS)
        assert len(capsys.readouterr().out.splitlines()) == 1, "a sign of life"


#: Seconds for the lines to arrive.
PATIENCE_S = 30.0

FOLLOW = """
import sys
from treehammer.submit.cli.unfinished_campaigns import live_display
from treehammer.sql.read.campaign_counts import CampaignCount, MeasurementCount
with live_display("nightly", 20) as show:
    show(CampaignCount({"A": MeasurementCount(planned=20)}))
    sys.stdin.read()
"""


def test_lines_reach_a_pipe_while_the_campaign_runs() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=buffered,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        lines = [process.stdout.readline() for _ in range(2)]
        running = process.poll() is None
        patience.cancel()
        process.stdin.close()
    assert running
    assert lines[0] == "nightly\n"
    assert "0 of 20 measured" in lines[1]


def test_result_for_programs_stays_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with unfinished_campaigns.live_display("c", 20, to_stderr=True) as show:
        show(PROGRESS)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "6 of 20 measured" in captured.err
