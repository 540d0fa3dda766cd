"""The key ``headline`` of [test]: known names, directions, suggestions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.definition_loader import load_definition, override_definition
from treehammer.hctests.definition.judged_metrics import (
    DEFAULT_HEADLINE,
    HeadlineMetric,
    find_headline_metric,
    list_headline_names,
)
from treehammer.hctests.definition.model import MetricDeclaration, compute_test_hash

WriteTest = Callable[..., Path]

TEST = """[test]
name = "mine"
payload = "read.py"
headline = [{headline}]

[metrics.frames_hz]
unit = "Hz"
better = "higher"

[metrics.depth]
"""
OWN = {"frames_hz": MetricDeclaration("Hz", "higher"), "depth": MetricDeclaration()}


def write_headline(write_test: WriteTest, *names: str, load: bool = True) -> Path:
    text = TEST.format(headline=", ".join(f'"{name}"' for name in names))
    return write_test(text + ("\n[load]\n" if load else ""))


def test_metrics_have_unit_and_direction() -> None:
    def find(name: str) -> HeadlineMetric:
        return find_headline_metric(name, OWN, is_load=True)

    assert find("frames_hz") == HeadlineMetric("frames_hz", "Hz", "higher")
    assert find("eff_job") == HeadlineMetric("eff_job", "1", "higher")
    assert find("first_byte_s") == HeadlineMetric("first_byte_s", "s", "lower")
    assert find("open_p99_s") == HeadlineMetric("open_p99_s", "s", "lower", "p99_s", "open")
    assert find("vector_read_bytes_per_s").operation == "vector_read"
    assert find("rate_hz") == HeadlineMetric("rate_hz", "Hz", "higher", "rate_hz")
    assert [find(metric.name) for metric in DEFAULT_HEADLINE] == [*DEFAULT_HEADLINE]
    names = [*list_headline_names(OWN, is_load=True)]
    assert {"frames_hz", "open_p99_s", "rate_hz", "cpu_per_event_s"} <= {*names}
    assert not {"depth", "bytes_read", "host"} & {*names}
    assert "open_p99_s" not in list_headline_names(OWN, is_load=False)


def test_headline_is_read_and_is_no_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_headline(write_test, "open_p99_s", "rate_hz")
    definition = load_definition(folder)
    assert definition.headline == ("open_p99_s", "rate_hz")
    settings = load_settings({}, environ={}, folder=folder)
    before = compute_test_hash(pinned_tests.pin_test(str(folder), settings))
    write_headline(write_test, "eff_job")
    assert compute_test_hash(pinned_tests.pin_test(str(folder), settings)) == before
    changed = override_definition(definition, {}, {"headline": '["eff_job"]', "repeats": "2"})
    assert changed.headline == ("eff_job",)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("opne_p99_s", "'opne_p99_s' is not a metric; did you mean 'open_p99_s'?"),
        ("frame_hz", "'frame_hz' is not a metric; did you mean 'frames_hz'?"),
        ("eff_jop", "'eff_jop' is not a metric; did you mean 'eff_job'?"),
        ("depth", '\'depth\' needs a direction: better = "lower" or "higher" in [metrics.depth]'),
        ("host", "'host' is not a number"),
        ("bytes_read", "'bytes_read' is an exact counter, which every comparison lists anyway"),
        ("events_read", "'events_read' has no direction"),
    ],
)
def test_wrong_names_are_refused(write_test: WriteTest, name: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_headline(write_test, name))
    (found,) = caught.value.problems
    assert f"test.toml:4: test.headline: {problem}" in found


def test_figures_of_operations_need_a_load(write_test: WriteTest) -> None:
    with pytest.raises(DefinitionError, match="1 mistake") as caught:
        load_definition(write_headline(write_test, "open_p99_s", load=False))
    assert "only a test with the table [load] has" in caught.value.problems[0]
    with pytest.raises(DefinitionError, match="1 mistake") as caught:
        load_definition(write_headline(write_test, "eff_job", "eff_job"))
    assert "given twice" in caught.value.problems[0]
