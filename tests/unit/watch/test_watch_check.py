"""Output of the plugin ``check``, states from a service, and limits of a campaign."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from limited_campaign import fill_with_limits
from local_servers import send_answer, serve_http
from measurement_factory import make_campaign_row, make_job_row
from repository_code import call_command, invoke_command

from treehammer.cli import cli
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.remote_states import RemoteService
from treehammer.watch.alarms.subject_state import (
    MAX_LINE,
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    format_plugin_output,
    judge_figure,
    worst_level,
)
from treehammer.watch.cli import watch_commands

#: Section 2.6 of the guidelines, with ranges of section 2.5.
_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = rf"(?:@?(?:(?:{_NUMBER}|~)?:)?(?:{_NUMBER})?)?"
PERFDATA = re.compile(
    rf"(?:'[^'=]+'|[^\s'=]+)=(?:U|{_NUMBER}(?:s|us|ms|%|B|KB|MB|TB|c)?)"
    rf"(?:;{_RANGE}(?:;{_RANGE}(?:;(?:{_NUMBER})?(?:;(?:{_NUMBER})?)?)?)?)?"
)
FIGURES = (
    AlarmFigure("daily_good", 940),
    AlarmFigure("daily_bad_per_good", 6.38298, "%", warning=6.0),
    AlarmFigure("held", 3.5, "%", warning=10, critical=50, maximum=100),
    AlarmFigure("answer", None, "s", 5, 20),
)
SITE = SubjectState(
    AlarmKind.SITE,
    "T2_XY_Site",
    AlarmLevel.WARNING,
    "60 of 1000 measurements in 24h were bad",
    details=("jobs: warning since 2026-03-01", "storage: ok"),
    figures=FIGURES,
    evidence="/sites/T2_XY_Site",
    rule="daily/1a2b",
)


def split_output(text: str) -> tuple[str, list[str]]:
    """Split the first line into text and perfdata."""
    line, _, data = text.splitlines()[0].partition(" | ")
    return line, data.split(" ") if data else []


def test_line_has_state_reason_and_figures() -> None:
    assert format_plugin_output(SITE) == (
        "SITE T2_XY_Site WARNING - 60 of 1000 measurements in 24h were bad | answer=U;5;20 "
        "daily_bad_per_good=6.383%;6 daily_good=940 held=3.5%;10;50;;100"
    )
    _, data = split_output(format_plugin_output(SITE))
    assert all(map(PERFDATA.fullmatch, data))


def test_details_follow_with_verbosity() -> None:
    assert format_plugin_output(SITE, 1).splitlines()[1:] == list(SITE.details)
    assert format_plugin_output(SITE, 2).splitlines()[3:] == [
        "rule: daily/1a2b",
        "evidence: /sites/T2_XY_Site",
        "daily_bad_per_good: 6.383%; warning above 6%",
        "held: 3.5%; warning above 10%, critical above 50%",
        "answer: unknown; warning above 5s, critical above 20s",
    ]


@pytest.mark.parametrize("level", AlarmLevel)
def test_states_are_named(level: AlarmLevel) -> None:
    state = SubjectState(AlarmKind.SERVICE, "treehammer", level, "reason")
    assert format_plugin_output(state) == f"SERVICE {level} - reason"
    assert (level.code, AlarmLevel.DOWNTIME.code) == (
        {"WARNING": 1, "CRITICAL": 2, "UNKNOWN": 3}.get(level, 0),
        0,
    )


@given(
    st.text(max_size=200),
    st.text(max_size=200),
    st.floats(min_value=-1e12, max_value=1e12),
    st.none() | st.floats(min_value=-1e12, max_value=1e12),
)
def test_any_text_and_number_gives_valid_output(
    summary: str, detail: str, value: float, limit: float | None
) -> None:
    figure = AlarmFigure("figure", value, "s", limit, limit)
    state = SubjectState(
        AlarmKind.SITE, detail or "X", AlarmLevel.CRITICAL, summary, (detail,), (figure,)
    )
    text = format_plugin_output(state, 2)
    line, data = split_output(text)
    assert text.count("|") == 1
    assert len(line) <= MAX_LINE
    assert line.startswith("SITE")
    assert [bool(PERFDATA.fullmatch(item)) for item in data] == [True]


def test_figures_are_judged_by_their_thresholds() -> None:
    above = AlarmFigure("x", 7, warning=6, critical=8)
    assert judge_figure(above) is AlarmLevel.WARNING
    assert judge_figure(AlarmFigure("x", 6, warning=6)) is AlarmLevel.OK
    assert judge_figure(AlarmFigure("x", 9, warning=6, critical=8)) is AlarmLevel.CRITICAL
    assert judge_figure(AlarmFigure("x", None, warning=0)) is AlarmLevel.OK
    assert worst_level() is AlarmLevel.OK
    assert worst_level(AlarmLevel.UNKNOWN, AlarmLevel.WARNING) is AlarmLevel.WARNING


STATE = SITE.to_document()


class Answers(BaseHTTPRequestHandler):
    """Answers with a body that a test sets."""

    body = b""
    status = 200

    def do_GET(self) -> None:
        send_answer(self, self.status, self.body)


@pytest.fixture(scope="module")
def service_url() -> Iterator[str]:
    with serve_http(Answers) as port:
        yield f"http://127.0.0.1:{port}"


def answer(*rows: Any) -> bytes:
    return json.dumps({"tables": {"states": rows}}).encode()


run_check = partial(invoke_command, "check", standalone_mode=False)


def changed(**changes: Any) -> bytes:
    return answer({**STATE, **changes})


def with_figure(**changes: Any) -> bytes:
    return changed(figures=[{**STATE["figures"][0], **changes}])


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"<html>404</html>",
    "deeply nested": b"[" * 100_000,
    "nested object": b'{"a":' * 100_000,
    "huge number": b"1" * 10_000,
    "not UTF-8": b"\xff\xfe{",
    "NaN": b'{"tables": {"states": NaN}}',
    "list": b"[]",
    "null": b"null",
    "no tables": b"{}",
    "tables as list": b'{"tables": []}',
    "tables as text": b'{"tables": "states"}',
    "states as object": b'{"tables": {"states": {"a": 1}}}',
    "states as text": b'{"tables": {"states": "abc"}}',
    "no state": answer(),
    "two states": answer(STATE, STATE),
    "state of another site": changed(name="other"),
    "state of another kind": changed(kind="release"),
    "state as list": answer([]),
    "unknown kind": changed(kind="star"),
    "kind as list": changed(kind=["site"]),
    "unknown level": changed(state="FINE"),
    "null as summary": changed(summary=None),
    "endless summary": changed(summary="x" * 1_000_000),
    "text as details": changed(details="abc"),
    "numbers in details": changed(details=[1]),
    "text as figures": changed(figures="abc"),
    "incomplete figure": changed(figures=[{}]),
    "text as value": with_figure(value="many"),
    "endless value": with_figure(value=10**400),
    "infinite value": with_figure(value=1).replace(b'"value": 1', b'"value": 1e999'),
    "text as threshold": with_figure(warning="6"),
    "odd name of a figure": with_figure(name="a'b=c|d"),
    "odd unit": with_figure(unit="s;1;2"),
    "text as time": changed(since_us="now"),
    "endless time": changed(since_us=10**30),
    "negative time": changed(since_us=-(10**18)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_unknown(service_url: str, tmp_path: Path, name: str) -> None:
    Answers.body = HOSTILE[name]
    form = ("plugin", "json")[len(name) % 2]
    done = run_check(tmp_path, "--site", SITE.name, "--url", service_url, "--format", form)
    assert (done.exception, done.return_value) == (None, 3)
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"SITE {SITE.name} UNKNOWN - the response ")


@pytest.mark.parametrize("body", [HOSTILE["deeply nested"], HOSTILE["no state"], b"[1]"])
def test_service_with_hostile_answers_is_unknown(
    service_url: str, tmp_path: Path, body: bytes
) -> None:
    Answers.body = body
    for arguments in (("--service", service_url), ("--all", "--url", service_url)):
        done = run_check(tmp_path, *arguments)
        assert (done.exception, done.return_value) == (None, 3)
        assert done.stdout.startswith("TREEHAMMER UNKNOWN - ")


def test_control_characters_do_not_reach_the_terminal(service_url: str, tmp_path: Path) -> None:
    Answers.body = changed(summary="\x1b[2Jgone\r\n\u2028x|y=1", details=["\x1b]0;t\x07"])
    done = run_check(tmp_path, "--site", SITE.name, "--url", service_url, "-v")
    assert (done.exception, done.return_value) == (None, 1)
    assert done.stdout.replace("\n", "").isprintable()
    assert "[2Jgone x/y=1" in done.stdout


def test_states_of_a_service_are_read(service_url: str) -> None:
    Answers.body = answer(STATE)
    assert RemoteService(service_url, 10).fetch_states(AlarmKind.SITE, SITE.name) == [SITE]
    state = RemoteService(service_url, 10, ca_file="ca.pem").assess_service()
    assert "ca.pem: cannot be used to verify the service (No such file" in state.summary


def test_bugs_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail = Mock(side_effect=TypeError("unexpected\nthing"))
    monkeypatch.setattr(watch_commands, "_load_states", fail)
    done = run_check(tmp_path, "--all")
    assert (done.exception, done.return_value) == (None, 3)
    assert done.stdout == "TREEHAMMER UNKNOWN - internal error: TypeError: unexpected thing\n"


def test_wrong_settings_are_unknown(tmp_path: Path) -> None:
    wrong = tmp_path / "treehammer.toml"
    wrong.write_text("databas = 'x'\n")
    done = CliRunner().invoke(
        cli, ["--config", str(wrong), "check", "--all"], standalone_mode=False
    )
    assert (done.exception, done.return_value) == (None, 3)
    assert done.stdout.startswith("TREEHAMMER UNKNOWN - ")
    assert "databas" in done.stdout


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        ("sites evaluate --no-collect", True),
        ("notify", False),
        ("notify --no-collect", False),
        ("check --service http://127.0.0.1:9 -t 1", False),
    ],
)
def test_only_what_people_read_names_what_waits(
    store: Store, tmp_path: Path, words: str, is_named: bool
) -> None:
    job = make_job_row("open", state="running", planned_measurements=2, batch_system="local")
    store.add_campaign(make_campaign_row(planned_measurements=2), [job])
    done = CliRunner().invoke(cli, ["--data-dir", str(tmp_path), *words.split()])
    assert (
        "name of campaign (campaign): 2 of 2 measurements are not in" in done.output
    ) == is_named


check_limits = partial(call_command, "check")


def test_check_prints_table_markdown_and_json(store: Store, tmp_path: Path) -> None:
    fill_with_limits(
        store,
        {"metric": "cpu_per_event_s", "at_most": 1.02, "base": "first"},
        {"metric": "max_rss_bytes", "at_most": 1e9, "where": {"root": "6.40.00"}},
        ratio=1.1,
    )
    result = check_limits(tmp_path, "--campaign", "last")
    assert result.return_value == 1
    assert result.output.startswith("Limits: 1 missed, 1 kept\n")
    assert "≤ 1.02 × 6.38.00" in result.output
    assert "≤ 1,000 MB" in result.output
    assert "500.0 MB [500.0, 500.0]" in result.output
    assert "Intervals of 95 % confidence" in result.output
    text = check_limits(tmp_path, "--campaign", "last", "--format", "markdown").output
    assert "### ❌ Limits of x: 1 missed, 1 kept" in text
    assert "| ❌ missed | cpu\\_per\\_event\\_s | root=6.40.00 | ≤ 1.02 × 6.38.00 | 1." in text
    assert "8 of 8 measured" in text
    document = json.loads(check_limits(tmp_path, "--campaign", "last", "--format", "json").output)
    assert (document["code"], document["planned"], document["measured"]) == (1, 8, 8)
    (missed, met) = document["limits"]
    assert (missed["state"], met["state"]) == ("missed", "kept")
    assert math.isclose(missed["value"], 1.1, rel_tol=0.01)


def test_check_refuses_what_has_no_answer(store: Store, tmp_path: Path) -> None:
    fill_with_limits(store)
    for arguments, message in (
        (["--campaign", "last"], "the test of name of campaign states no limit; add [[expect]]"),
        (["--campaign", "last", "--url", "http://x"], "are mutually exclusive"),
        (["--campaign", "last", "--site", "A"], "give one of --site, --release"),
        (["--site", "A", "--format", "markdown"], "--format markdown is for --campaign"),
        (["--campaign", "campain"], "'campain': no campaign matches\nDid you mean 'campaign'?"),
    ):
        result = check_limits(tmp_path, *arguments)
        assert (result.return_value, message in result.output) == (3, True), result.output
    result = check_limits(tmp_path, "--campaign", "last", "--format", "json")
    document = json.loads(result.output)
    assert (result.return_value, document["code"], document["limits"]) == (3, 3, [])
    assert document["planned"] == 8
