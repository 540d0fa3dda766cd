"""Command line options of a submission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from treehammer.errors import ConfigError
from treehammer.submit.cli.submission_click_options import submission_click_options
from treehammer.submit.planning.job_credentials import JobCredentials
from treehammer.submit.planning.pacing import BreakerThreshold, Pace, PaceRamp
from treehammer.submit.planning.submission_options import SubmissionOptions


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
        *("--in-flight", "9", "--spread", "24h", "--ramp", "3/10m", "--breaker", "20%/5"),
        *("--proxy", str(tmp_path / "p")),
        BEARER_TOKEN_FILE=str(tmp_path / "t"),
    )
    assert typed.pace == Pace(9, 86400, PaceRamp(3, 600))
    assert typed.breaker == BreakerThreshold(0.2, 5)
    assert typed.credentials == JobCredentials(tmp_path / "p", tmp_path / "t")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("--in-flight", "0"), "--in-flight 0: must be at least 1"),
        (("--ramp", "3/10m"), "--in-flight N"),
        (("--spread", "soon"), "--spread: 'soon' is not a duration"),
        (("--breaker", "half"), "--breaker: 'half' is not a failure threshold"),
    ],
)
def test_invalid_option_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _typed(*arguments)
    assert said in str(caught.value)
