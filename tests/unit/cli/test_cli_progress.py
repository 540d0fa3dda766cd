"""Progress on a standard error that is not a terminal: few lines, none for short steps."""

from __future__ import annotations

import pytest

from treehammer.terminal import progress_bar


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("treehammer.terminal.time.monotonic", lambda: now[0])
    return now


def test_progress_prints_each_tenth_with_remaining_time(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("Measuring", 20) as step:
        for done in range(21):
            step(done, f"{done} done")
            clock[0] += 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "Measuring: 2/20 2 done, about 54 s remaining"
    assert lines[-1] == "Measuring: 20/20 20 done"


def test_quick_work_prints_no_progress(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("Verifying", 50) as step:
        for done in range(51):
            step(done)
            clock[0] += 0.01
    assert capsys.readouterr().err == ""


def test_single_step_prints_notes(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("Fetching ROOT 6.40.00", 1) as step:
        step(0, "downloading")
        step(0, "downloading")
        step(0, "checking")
        step(1)
    assert capsys.readouterr().err.splitlines() == [
        "Fetching ROOT 6.40.00: downloading",
        "Fetching ROOT 6.40.00: checking",
    ]
