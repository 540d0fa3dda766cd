"""The table [load]: its checks, its part in the identity, overrides, and its display."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.cli import tests as commands
from treehammer.hctests.definition.definition_loader import load_definition, override_definition
from treehammer.hctests.definition.model import (
    LoadCeiling,
    LoadSettings,
    PinnedTest,
    compute_test_hash,
)

WriteTest = Callable[..., Path]

LOAD = """[load]
together = true
ramp = "2/30s"
duration_s = 120
ceiling = {opens_per_s = 200, clients = 100}
"""


def pin(folder: Path) -> PinnedTest:
    return pinned_tests.pin_test(str(folder), load_settings({}, environ={}, folder=folder))


def test_load_table_is_read_with_defaults(write_test: WriteTest) -> None:
    load = load_definition(write_test(LOAD)).load
    ceiling = LoadCeiling(opens_per_s=200.0, clients=100)
    assert load == LoadSettings(True, "2/30s", duration_s=120.0, ceiling=ceiling)
    assert [load.level_start_s(index) for index in (0, 1, 2, 5)] == [0, 0, 30, 60]
    assert load_definition(write_test()).load is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ramp = '2/30s'", "load.ramp: needs a common start: together = true"),
        (
            "together = true\nramp = '0/30s'",
            "load.ramp: '0/30s' is not a ramp (expected like 10/5m",
        ),
        ("together = true\nramp = '2/25s'", "levels of 25 s are not a multiple of step_s = 10"),
        ("togehter = true", "unknown key of [load] (known: together, ramp,"),
        ("ceiling = {client = 1}", "unknown key of [load.ceiling]"),
        ("duration_s = 0", "load.duration_s: 0 is wrong (expected more than 0"),
    ],
)
def test_mistakes_name_their_key(write_test: WriteTest, text: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(f"[load]\n{text}\n"))
    (found,) = caught.value.problems
    assert problem in found


def test_paired_mode_is_refused(write_test: WriteTest) -> None:
    text = '[test]\nname = "mine"\npayload = "read.py"\nmode = "paired"\n'
    text += f'[matrix]\nroot = ["6.38.00", "6.40.00"]\nbundle = ["root"]\n{LOAD}'
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(text))
    assert "a load test needs 'solo'" in "".join(caught.value.problems)


def test_identity_contains_the_shape_of_the_load(write_test: WriteTest) -> None:
    pinned = pin(write_test(LOAD))

    def hash_with(**changes: object) -> str:
        load = dataclasses.replace(pinned.definition.load, **changes)  # type: ignore[type-var]
        definition = dataclasses.replace(pinned.definition, load=load)
        return compute_test_hash(dataclasses.replace(pinned, definition=definition))

    same = hash_with()
    assert hash_with(wait_s=1.0) == hash_with(ceiling=LoadCeiling()) == same
    assert len({same, hash_with(ramp=""), hash_with(duration_s=1.0), hash_with(step_s=1.0)}) == 4


def test_overrides_replace_keys_of_the_load(write_test: WriteTest) -> None:
    definition = load_definition(write_test(LOAD))
    typed = {"load.ramp": "", "load.duration_s": "30", "load.ceiling.clients": "7"}
    load = override_definition(definition, {}, typed).load
    assert load is not None
    assert (load.ramp, load.duration_s, load.ceiling.clients) == ("", 30.0, 7)
    with pytest.raises(DefinitionError) as caught:
        override_definition(definition, {}, {"load.duration": "30"})
    assert "-S load.duration: unknown key of [load]" in caught.value.problems[0]


def test_overrides_make_a_load_test_of_any_test(write_test: WriteTest) -> None:
    """Such a payload does not wait for its start: it must not be launched before."""
    definition = load_definition(write_test())
    assert definition.load is None
    typed = {"load.together": "true", "load.ramp": "10/1m", "load.ceiling.clients": "100"}
    load = override_definition(definition, {}, typed).load
    assert load == LoadSettings(
        together=True, ramp="10/1m", lead_s=0.0, ceiling=LoadCeiling(clients=100)
    )
    with pytest.raises(DefinitionError) as caught:
        override_definition(definition, {}, {"load.ceiling.jobs": "100"})
    assert "-S load.ceiling.jobs: unknown key" in caught.value.problems[0]


def test_show_describes_the_load(write_test: WriteTest) -> None:
    folder = write_test(LOAD)
    settings = load_settings({}, environ={}, folder=folder)
    shown = CliRunner().invoke(commands, ["show", str(folder)], obj=settings).output
    assert (
        "load     120 s in steps of 10 s; jobs start together, after 600 s at most; "
        "ramp 2/30s; at most 200 opens/s, 100 clients at a door"
    ) in shown
