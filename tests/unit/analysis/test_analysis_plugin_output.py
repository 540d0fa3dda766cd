"""Output of a plugin follows the guidelines of the Monitoring Plugins."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.analysis.alarms.alarm_overview import build_monit_documents
from treehammer.analysis.alarms.plugin_output import MAX_LINE, format_plugin_output
from treehammer.analysis.status.subject_state import (
    AlarmFigure,
    AlarmKind,
    AlarmLevel,
    SubjectState,
    judge_figure,
    worst_level,
)

#: Section 2.6 of the guidelines, with ranges of section 2.5.
_NUMBER = r"-?\d+(?:\.\d+)?"
_RANGE = rf"(?:@?(?:(?:{_NUMBER}|~)?:)?(?:{_NUMBER})?)?"
PERFDATA = re.compile(
    rf"(?:'[^'=]+'|[^\s'=]+)=(?:U|{_NUMBER}(?:s|us|ms|%|B|KB|MB|TB|c)?)"
    rf"(?:;{_RANGE}(?:;{_RANGE}(?:;(?:{_NUMBER})?(?:;(?:{_NUMBER})?)?)?)?)?"
)
FIGURES = (
    AlarmFigure("daily_good", 940),
    AlarmFigure("daily_failed_per_good", 6.38298, "%", warning=6.0),
    AlarmFigure("held", 3.5, "%", warning=10, critical=50, maximum=100),
    AlarmFigure("answer", None, "s", 5, 20),
)
SITE = SubjectState(
    AlarmKind.SITE,
    "T2_XY_Site",
    AlarmLevel.WARNING,
    "60 of 1000 measurements in 24h failed",
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
        "SITE T2_XY_Site WARNING - 60 of 1000 measurements in 24h failed | answer=U;5;20 "
        "daily_failed_per_good=6.383%;6 daily_good=940 held=3.5%;10;50;;100"
    )
    _, data = split_output(format_plugin_output(SITE))
    assert all(map(PERFDATA.fullmatch, data))


def test_details_follow_with_verbosity() -> None:
    assert format_plugin_output(SITE, 1).splitlines()[1:] == list(SITE.details)
    assert format_plugin_output(SITE, 2).splitlines()[3:] == [
        "rule: daily/1a2b",
        "evidence: /sites/T2_XY_Site",
        "daily_failed_per_good: 6.383%; warning above 6%",
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
    assert [bool(PERFDATA.fullmatch(one)) for one in data] == [True]


def test_figures_are_judged_by_their_thresholds() -> None:
    above = AlarmFigure("x", 7, warning=6, critical=8)
    assert judge_figure(above) is AlarmLevel.WARNING
    assert judge_figure(AlarmFigure("x", 6, warning=6)) is AlarmLevel.OK
    assert judge_figure(AlarmFigure("x", 9, warning=6, critical=8)) is AlarmLevel.CRITICAL
    assert judge_figure(AlarmFigure("x", None, warning=0)) is AlarmLevel.OK
    assert worst_level() is AlarmLevel.OK
    assert worst_level(AlarmLevel.UNKNOWN, AlarmLevel.WARNING) is AlarmLevel.WARNING


def test_monit_documents_have_mandatory_fields() -> None:
    now_us = 1_790_000_000_123_456
    down = SubjectState(AlarmKind.SITE, "T2_Down", AlarmLevel.DOWNTIME, "power cut")
    first, second = build_monit_documents((SITE, down), now_us=now_us, producer="cms-io")
    assert (
        first.items()
        >= {
            "producer": "cms-io",
            "type": "site_status",
            "type_prefix": "raw",
            "timestamp": 1_790_000_000_123,
            "status": "WARNING",
            "figure_daily_good": 940,
        }.items()
    )
    assert second["status"] == "DOWNTIME"
    assert first["_id"] != second["_id"]
    assert build_monit_documents((SITE,), now_us=now_us, producer="cms-io") == [first]
