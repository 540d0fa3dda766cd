"""Rules, schedule and figures of the benchmark that compares other tools."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from repository_code import import_benchmarks


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with import_benchmarks() as import_benchmark:
        yield {
            "comparison": import_benchmark("scenarios.tool_comparison"),
            "tools": import_benchmark("scenarios.peer_tools"),
        }


def _row(modules: dict[str, ModuleType], **values: Any) -> Any:
    defaults = {
        "label": "quiet", "started": "2026-01-01T00:00:00+00:00", "load1": 0.1, "tool": "asv",
        "rule": "factor 1.1", "scenario": "A/A", "planted": 0.0, "effect": 0.01,
        "verdict": "no change", "seconds": 30.0, "read_bytes": math.nan,
    }  # fmt: skip
    return modules["comparison"].PeerVerdict(**{**defaults, **values})


@pytest.mark.parametrize(
    ("mark", "verdict"), [("+", "slower"), ("-", "faster"), (" ", "no change")]
)
def test_marks_of_asv(modules: dict[str, ModuleType], mark: str, verdict: str) -> None:
    printed = f"""
| Change | Before [aaaa] | After [bbbb] | Ratio | Benchmark (Parameter) |
|--------|---------------|--------------|-------|-----------------------|
| {mark:6} | 1.00±0.01s    | 1.20±0.01s   | 1.2   | reading.Reading.time_read |
"""
    assert modules["tools"].parse_asv(printed) == verdict


def test_output_of_rootreadspeed(modules: dict[str, ModuleType]) -> None:
    printed = (
        "Thread pool size:\t\t0\nReal time:\t\t\t4.33385 s\nCPU time:\t\t\t1.19 s\n"
        "Uncompressed data read:\t\t191279728 bytes\nCompressed data read:\t\t49575164 bytes\n"
    )
    values = modules["tools"].parse_readspeed(printed)
    assert values == {"wall": 4.33385, "cpu": 1.19, "bytes": 49575164}


def test_a_side_is_slower_by_eye_if_each_run_is(modules: dict[str, ModuleType]) -> None:
    judge = modules["tools"].judge_by_eye
    assert judge([1.0, 1.1], [1.2, 1.3]) == "slower"
    assert judge([1.2, 1.3], [1.0, 1.1]) == "faster"
    assert judge([1.0, 1.2], [1.1, 1.3]) == "no change"


def test_tools_get_equal_time_and_end_in_time(modules: dict[str, ModuleType]) -> None:
    choose = modules["comparison"].choose_tool
    assert choose({"asv": [30.0], "ReFrame": [10.0, 10.0]}, 100.0) == "ReFrame"
    assert choose({"asv": [30.0], "ReFrame": [10.0]}, 20.0) == "ReFrame"
    assert choose({"asv": [], "ReFrame": [10.0]}, 20.0) == "asv"
    assert choose({"asv": [30.0]}, 20.0) == ""
    assert choose({"asv": []}, 0.0) == ""


def test_the_rarest_scenario_of_a_tool_is_next(modules: dict[str, ModuleType]) -> None:
    choose = modules["comparison"].choose_scenario
    rows = [_row(modules), _row(modules, tool="ReFrame"), _row(modules, label="busy")]
    assert choose([], "asv", "quiet").name == "A/A"
    assert choose(rows, "asv", "quiet").name == "planted 2 %"


def test_figures_count_alarms_and_findings(modules: dict[str, ModuleType]) -> None:
    rows = [
        _row(modules),
        _row(modules, verdict="faster", effect=-0.01, started="2026-01-01T00:01:00+00:00"),
        _row(modules, scenario="planted 5 %", planted=0.05, verdict="slower"),
        _row(modules, scenario="planted 5 %", planted=0.05, verdict="faster", effect=-0.1),
        _row(modules, scenario="releases", planted=math.nan, verdict="faster"),
    ]
    figures = {figure.title: figure for figure in modules["comparison"].build_figures(rows)}
    prefix = "quiet: asv, factor 1.1: "
    assert figures[f"{prefix}false alarms"].value == 0.5
    assert figures[f"{prefix}planted 5 % found"].value == 0.5
    assert f"{prefix}planted 2 % found" not in figures
    assert figures[f"{prefix}rms of measured − planted"].pairs == 4
    assert figures["quiet: asv: seconds per verdict"].value == 30.0
