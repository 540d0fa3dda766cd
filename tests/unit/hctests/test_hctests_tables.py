"""Tables of test.toml and its headline metrics: checks, identity and overrides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer.collectors.job_spec import BuildCommand, ServerCommand
from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import tests as commands
from treehammer.hctests.definition.definition_loader import load_definition
from treehammer.hctests.definition.judged_metrics import (
    DEFAULT_HEADLINE,
    ExpectTable,
    HeadlineMetric,
    MetricTable,
    SiteLimitTable,
    find_headline_metric,
    list_metric_names,
)
from treehammer.hctests.definition.model import Scalar
from treehammer.hctests.definition.test_identity import PinnedTest, compute_test_hash
from treehammer.hctests.definition.toml_models import CeilingTable, LoadTable

WriteTest = Callable[..., Path]

MATRIX = (
    '[matrix]\nserver_threads = [20, 70]\nreadahead_kb = [128, 512]\nbundle = ["server_threads"]\n'
)
BEFORE = '[before]\ncommand = "apply.sh"\nsettings = ["server_threads"]\n'


def pin(folder: Path) -> PinnedTest:
    return pinned_tests.pin_test(str(folder), load_settings({}, environ={}, folder=folder))


def hash_of(folder: Path) -> str:
    return compute_test_hash(pin(folder))


def test_command_is_read_and_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_test(MATRIX + BEFORE, apply_sh="#!/bin/sh\n")
    definition = load_definition(folder)
    assert definition.server_command == ServerCommand("apply.sh", {"server_threads": 20}, 60.0)
    assert "apply.sh" in definition.test.files
    changed = load_definition(
        folder, axes={"server_threads": ["70", "20"]}, settings={"repeats": "2"}
    )
    assert changed.server_command == ServerCommand("apply.sh", {"server_threads": 70}, 60.0)
    contents = ((BEFORE, "#!/bin/sh\n"), (BEFORE, "#!/bin/sh\nexit\n"), ("", "#!/bin/sh\n"))
    hashes = {hash_of(write_test(MATRIX + text, apply_sh=script)) for text, script in contents}
    assert len(hashes) == 3


def test_command_must_be_an_executable_of_the_test(write_test: WriteTest) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(MATRIX + BEFORE))
    assert "before.command: there is no file 'apply.sh'" in caught.value.problems[0]
    folder = write_test(MATRIX + BEFORE, apply_sh="#!/bin/sh\n")
    (folder / "apply.sh").chmod(0o644)
    with pytest.raises(DefinitionError) as caught:
        load_definition(folder)
    assert "'apply.sh' is not executable (run 'chmod +x apply.sh'" in caught.value.problems[0]


BUILD = """
[build]
command = "make.sh"
files = ["fix.patch"]
outputs = ["libfix.so"]
"""


def write_build(write_test: WriteTest, text: str = BUILD, patch: str = "+1\n") -> Path:
    return write_test(text, make_sh="#!/bin/sh\n", fix_patch=patch)


def test_build_is_read_and_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_build(write_test)
    definition = load_definition(folder)
    assert definition.build_command == BuildCommand("make.sh", ("libfix.so",), (), 600.0)
    assert {"make.sh", "fix.patch"} <= set(definition.test.files)
    assert load_definition(folder, settings={"repeats": "2"}).build == definition.build
    same = hash_of(write_build(write_test))
    preloaded = hash_of(write_build(write_test, f'{BUILD}preload = ["libfix.so"]\n'))
    assert len({same, preloaded, hash_of(write_build(write_test, patch="+2\n"))}) == 3
    assert hash_of(write_build(write_test, f"{BUILD}timeout_s = 5\n")) == same


LOAD = """[load]
together = true
ramp = "2/30s"
duration_s = 120
ceiling = {opens_per_s = 200, clients = 100}
"""


def test_outputs_are_loaded_without_being_files_of_the_test(write_test: WriteTest) -> None:
    definition = load_definition(write_build(write_test, f'load = ["libfix.so"]{BUILD}'))
    assert definition.test.load == ("libfix.so",)
    assert "libfix.so" not in definition.test.files


def test_folder_of_the_build_is_an_environment_value(write_test: WriteTest) -> None:
    environment = '[environment]\nPLUGINS = "{build}"\n'
    assert load_definition(write_build(write_test, BUILD + environment)).environment
    with pytest.raises(DefinitionError, match="'build' is not an axis"):
        load_definition(write_test(environment))


def test_variables_are_added_and_replaced(write_test: WriteTest) -> None:
    folder = write_test("[environment]\nA = 'at {cache_mb} MB'\n")
    definition = load_definition(folder)
    assert definition.environment == {"A": "at {cache_mb} MB"}
    changed = load_definition(folder, settings={"environment.B": "1", "record": "true"})
    assert changed.environment == {"A": "at {cache_mb} MB", "B": "1"}
    assert changed.test.record
    assert not definition.test.record


def test_load_table_is_read_with_defaults(write_test: WriteTest) -> None:
    load = load_definition(write_test(LOAD)).load
    ceiling = CeilingTable(opens_per_s=200.0, clients=100)
    assert load == LoadTable(together=True, ramp="2/30s", duration_s=120.0, ceiling=ceiling)
    assert [load.level_start_s(index) for index in (0, 1, 2, 5)] == [0, 0, 30, 60]
    assert load_definition(write_test()).load is None


def test_identity_contains_the_shape_of_the_load(write_test: WriteTest) -> None:
    pinned = pin(write_test(LOAD))

    assert pinned.definition.load
    load = pinned.definition.load

    def hash_with(**changes: object) -> str:
        definition = pinned.definition.replace(load=load.replace(**changes))
        return compute_test_hash(dataclasses.replace(pinned, definition=definition))

    same = hash_with()
    assert hash_with(wait_s=1.0) == hash_with(ceiling=CeilingTable()) == same
    assert len({same, hash_with(ramp=""), hash_with(duration_s=1.0), hash_with(step_s=1.0)}) == 4


def test_overrides_replace_keys_of_the_load(write_test: WriteTest) -> None:
    folder = write_test(LOAD)
    typed = {"load.ramp": "", "load.duration_s": "30", "load.ceiling.clients": "7"}
    load = load_definition(folder, settings=typed).load
    assert load is not None
    assert (load.ramp, load.duration_s, load.ceiling.clients) == ("", 30.0, 7)
    with pytest.raises(DefinitionError) as caught:
        load_definition(folder, settings={"load.duration": "30"})
    assert "-S load.duration: unknown key of [load]" in caught.value.problems[0]


def test_overrides_make_a_load_test_of_any_test(write_test: WriteTest) -> None:
    """Such a payload does not wait for its start: it must not be launched before."""
    folder = write_test()
    assert load_definition(folder).load is None
    typed = {"load.together": "true", "load.ramp": "10/1m", "load.ceiling.clients": "100"}
    load = load_definition(folder, settings=typed).load
    assert load == LoadTable(
        together=True, ramp="10/1m", lead_s=0.0, ceiling=CeilingTable(clients=100)
    )


def test_show_describes_the_load(write_test: WriteTest) -> None:
    folder = write_test(LOAD)
    settings = load_settings({}, environ={}, folder=folder)
    shown = CliRunner().invoke(commands, ["show", str(folder)], obj=settings).output
    assert (
        "load     120 s in steps of 10 s; jobs start together, after 600 s at most; "
        "ramp 2/30s; states at most 200 opens/s, 100 clients at a door"
    ) in shown


OWN = {"frames_hz": MetricTable(unit="Hz", better="higher"), "depth": MetricTable()}


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
    with pytest.raises(ValueError, match="only equal or different"):
        find_headline_metric("out_hash", {"out_hash": MetricTable(better="lower")}, is_load=True)
    names = [*list_metric_names(find_headline_metric, OWN, is_load=True)]
    assert {"frames_hz", "open_p99_s", "rate_hz", "cpu_per_event_s"} <= {*names}
    assert not {"depth", "bytes_read", "host"} & {*names}
    assert "open_p99_s" not in list_metric_names(find_headline_metric, OWN, is_load=False)


def test_headline_is_read_and_is_no_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_test('headline = ["open_p99_s", "rate_hz"]\n[load]\n')
    definition = load_definition(folder)
    assert definition.test.headline == ("open_p99_s", "rate_hz")
    before = hash_of(folder)
    assert hash_of(write_test('headline = ["eff_job"]\n[load]\n')) == before
    changed = load_definition(folder, settings={"headline": '["eff_job"]', "repeats": "2"})
    assert changed.test.headline == ("eff_job",)


LIMIT_MATRIX = """
[matrix]
root = ["6.38.00", "6.40.00"]
cache_mb = [0, 30]
bundle = ["root"]

[metrics.depth]
"""
LIMITS = """
[[expect]]
metric = "cpu_per_event_s"
at_most = 1.02
base = "first"
where = { cache_mb = 30 }

[[expect]]
metric = "depth"
at_least = 4
at_most = 9
[expect.sites.SITE_A]
at_most = 12
"""


def test_limits_are_read_stored_and_no_part_of_the_identity(write_test: WriteTest) -> None:
    before = hash_of(write_test(LIMIT_MATRIX))
    folder = write_test(LIMIT_MATRIX + LIMITS)
    definition = load_definition(folder)
    assert definition.expect == (
        ExpectTable(metric="cpu_per_event_s", at_most=1.02, base="first", where={"cache_mb": 30}),
        ExpectTable(
            metric="depth", at_most=9, at_least=4, sites={"SITE_A": SiteLimitTable(at_most=12)}
        ),
    )
    assert hash_of(folder) == before
    assert [*definition.expect[1].list_bounds("SITE_A")] == [("at_most", 12), ("at_least", 4)]
    assert [*definition.expect[1].list_bounds("local")] == [("at_most", 9), ("at_least", 4)]


def test_command_line_keeps_limits_of_remaining_variants(write_test: WriteTest) -> None:
    folder = write_test(LIMIT_MATRIX + LIMITS)
    definition = load_definition(folder)
    replaced = load_definition(folder, axes={"root": ("6.37.01", "6.40.00")})
    assert replaced.expect == definition.expect
    limit = replaced.expect[0]
    assert limit.resolve_base(replaced.axes, replaced.matrix.bundle) == ("root", "6.37.01")
    without_cache = load_definition(folder, axes={"cache_mb": ("0",)})
    assert [limit.metric for limit in without_cache.expect] == ["depth"]


@pytest.mark.parametrize(
    ("base", "resolved"),
    [
        ("", ("", "")),
        ("6.38.00", ("root", "6.38.00")),
        ("cache_mb=30", ("cache_mb", 30)),
        ("pypi:ROOT==0.1a9", ("root", "pypi:ROOT==0.1a9")),
    ],
)
def test_bases_name_an_axis_or_a_release(base: str, resolved: tuple[str, object]) -> None:
    axes: dict[str, tuple[Scalar, ...]] = {"root": ("6.38.00", "6.40.00"), "cache_mb": (0, 30)}
    assert ExpectTable(metric="x", at_most=1, base=base).resolve_base(axes, ["root"]) == resolved


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (ExpectTable(metric="a", at_most=2e9), "a at most 2e+09 B"),
        (ExpectTable(metric="a", at_most=1.02, base="first"), "a at most 1.02 × first"),
        (
            ExpectTable(
                metric="a",
                at_most=9,
                at_least=4,
                where={"root": "x"},
                sites={"S": SiteLimitTable(at_most=12)},
            ),
            "a at most 9 B, at least 4 B, at most 12 B at S where root=x",
        ),
    ],
)
def test_limits_are_described_with_units(limit: ExpectTable, text: str) -> None:
    assert limit.describe("B") == text
