"""Options of a submission: command line, durations, ramps, and delays that HTCondor computes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from treehammer.errors import ConfigError
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.planning.submission_options import JobCredentials, Pace, SubmissionOptions
from treehammer.text_formatting import JobRamp, parse_duration


def _typed(*arguments: str, **env: str) -> SubmissionOptions:
    found: list[SubmissionOptions] = []

    @click.command()
    @submission_click_options
    def command(options: Any) -> None:
        found.append(options)

    CliRunner().invoke(command, arguments, env=env, standalone_mode=False, catch_exceptions=False)
    return found[0]


def test_options_have_defaults() -> None:
    assert _typed() == SubmissionOptions()


def test_options_are_parsed(tmp_path: Path) -> None:
    typed = _typed(
        *("--in-flight", "9", "--spread", "24h", "--ramp", "3/10m", "--include-excluded", "A, B"),
        *("--proxy", str(tmp_path / "p")),
        BEARER_TOKEN_FILE=str(tmp_path / "t"),
    )
    assert typed.pace == Pace(9, 86400, JobRamp(3, 600))
    assert typed.include_excluded == ("A", "B")
    assert typed.credentials == JobCredentials(tmp_path / "p", tmp_path / "t")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--in-flight", "0"), "--in-flight 0: must be at least 1"),
        (("--ramp", "3/10m"), "--in-flight N"),
        (("--spread", "soon"), "--spread: 'soon' is not a duration"),
    ],
)
def test_invalid_option_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _typed(*arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text, expected", [("90s", 90), (" 2 m", 120), ("24h", 86400), ("2d", 172800)]
)
def test_duration_is_parsed(text: str, expected: int) -> None:
    assert parse_duration(text, "--spread") == expected


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "0h", "1.5h", "24 hours", "99999999h"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--spread.*not a duration"):
        parse_duration(text, "--spread")


def test_ramp_is_parsed() -> None:
    assert JobRamp.parse("5/10m", "--ramp") == JobRamp(5, 600)
    for text in ("5", "0/1m", "x/1m", "5/", "5/0s", "/5m"):
        with pytest.raises(ConfigError, match="--ramp"):
            JobRamp.parse(text, "--ramp")


@pytest.mark.parametrize(
    "pace, in_flight, expected",
    [
        (Pace(), 1, [0, 0, 0, 0, 0, 0]),
        (Pace(spread_s=60), 1, [0, 10, 20, 30, 40, 50]),
        (Pace(ramp=JobRamp(2, 60)), 6, [0, 0, 60, 60, 120, 120]),
        (Pace(ramp=JobRamp(2, 60)), 3, [0, 0, 60, 60, 60, 60]),
        (Pace(spread_s=60, ramp=JobRamp(1, 100)), 2, [0, 110, 120, 130, 140, 150]),
    ],
)
def test_delay_expression_evaluates_in_htcondor(
    pace: Pace, in_flight: int, expected: list[int]
) -> None:
    os.environ.setdefault("CONDOR_CONFIG", "/dev/null")
    import classad2

    delay = classad2.ExprTree(pace.delay_expression(6, in_flight))
    found = [delay.eval(classad2.ClassAd({"ProcId": number})) for number in range(6)]
    assert found == expected
