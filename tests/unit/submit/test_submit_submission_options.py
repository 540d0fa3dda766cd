"""Options of a submission, and checks of its storage credentials."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from credential_factory import SECRET, write_proxy, write_token

from treehammer.collectors.worker.probes.credential_checks import ProxyDetails
from treehammer.errors import ConfigError
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.planning import submission_options
from treehammer.submit.planning.submission_options import (
    JobCredentials,
    Pace,
    SubmissionOptions,
    site_credentials,
)
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


NOW = float(int(time.time()))


def test_credentials_valid_until_end_are_accepted(tmp_path: Path) -> None:
    both = JobCredentials(
        write_proxy(tmp_path / "p", NOW + 100), write_token(tmp_path / "t", NOW + 200)
    )
    both.check_validity(NOW, NOW + 99)
    both.check_validity(NOW, None)
    JobCredentials().check_validity(NOW, NOW + 10**9)
    assert both.sandbox_inputs() == {
        "x509-proxy.pem": tmp_path / "p",
        "storage-token": tmp_path / "t",
    }
    assert SECRET not in str(both.environment())


@pytest.mark.parametrize(
    "left, said", [(-1, "expired at 20"), (50, "expires at .* expected to end at")]
)
@pytest.mark.parametrize("make", [write_proxy, write_token])
def test_expiring_credential_is_refused(tmp_path: Path, make: object, left: int, said: str) -> None:
    assert callable(make)
    path = make(tmp_path / "c", NOW + left)
    shown = JobCredentials(path) if make is write_proxy else JobCredentials(token=path)
    with pytest.raises(ConfigError, match=said) as caught:
        shown.check_validity(NOW, NOW + 100)
    assert str(path) in str(caught.value)
    assert ("--proxy" in str(caught.value)) is (make is write_proxy)
    assert SECRET not in str(caught.value)


def test_unreadable_credential_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        JobCredentials(tmp_path / "none").check_validity(NOW, None)
    (tmp_path / "p").write_text(SECRET)
    with pytest.raises(ConfigError, match="contains no certificate") as caught:
        JobCredentials(tmp_path / "p").check_validity(NOW, None)
    assert SECRET not in str(caught.value)


def test_site_commands_name_credentials() -> None:
    found = site_credentials({"X509UserProxy": "/my/proxy", "scitokens_file": "/my/token"})
    assert found == JobCredentials(Path("/my/proxy"), Path("/my/token"))
    assert site_credentials({"accounting_group": "x"}) == JobCredentials()


@pytest.mark.parametrize(
    ("left", "said"),
    [(-1, "its VOMS attributes expired at"), (50, "its VOMS attributes expire at")],
)
def test_voms_attributes_that_end_first_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, said: str
) -> None:
    proxy = ProxyDetails("/CN=me", NOW + 200, ("/vo",), NOW + left)
    monkeypatch.setattr(submission_options, "read_proxy", lambda path: proxy)
    with pytest.raises(ConfigError, match=said):
        JobCredentials(tmp_path / "p").check_validity(NOW, NOW + 100)
    JobCredentials(tmp_path / "p").check_validity(NOW - 100, NOW - 50)
