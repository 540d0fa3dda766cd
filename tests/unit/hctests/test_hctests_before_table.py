"""The table [before]: its checks, its part in the identity, and overrides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import ServerCommand
from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.definition_loader import load_definition, override_definition
from treehammer.hctests.definition.model import compute_test_hash

WriteTest = Callable[..., Path]

MATRIX = (
    '[matrix]\nserver_threads = [20, 70]\nreadahead_kb = [128, 512]\nbundle = ["server_threads"]\n'
)
BEFORE = '[before]\ncommand = "apply.sh"\nsettings = ["server_threads"]\n'


def write_command(write_test: WriteTest, text: str, script: str = "#!/bin/sh\n") -> Path:
    folder = write_test(text, apply_sh=script)
    (folder / "apply.sh").chmod(0o755)
    return folder


def test_command_is_read_and_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_command(write_test, MATRIX + BEFORE)
    definition = load_definition(folder)
    assert definition.before == ServerCommand("apply.sh", {"server_threads": 20}, 60.0)
    assert "apply.sh" in definition.files
    changed = override_definition(definition, {"server_threads": ["70", "20"]}, {"repeats": "2"})
    assert changed.before == ServerCommand("apply.sh", {"server_threads": 70}, 60.0)
    hashes = set()
    settings = load_settings({}, environ={}, folder=folder)
    for text, script in (
        (BEFORE, "#!/bin/sh\n"),
        (BEFORE, "#!/bin/sh\nexit\n"),
        ("", "#!/bin/sh\n"),
    ):
        write_command(write_test, MATRIX + text, script)
        hashes.add(compute_test_hash(pinned_tests.pin_test(str(folder), settings)))
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("before", "problem"),
    [
        ('settings = ["readahead_kb"]', "'readahead_kb' is not bundled: add it to bundle"),
        (
            'settings = ["server_thread"]',
            "is not an axis of this test's own; did you mean 'server_threads'?",
        ),
        ('settings = ["cache"]', "'cache' is not an axis of this test's own"),
        ("settings = []", "before.settings: List should have at least 1 item"),
        ('settings = ["server_threads"]\ntimeout_s = 0', "before.timeout_s: 0 is wrong"),
        ('settings = ["server_threads"]\ntimeout = 1', "unknown key of [before]"),
    ],
)
def test_mistakes_name_their_key(write_test: WriteTest, before: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(
            write_command(write_test, f'{MATRIX}[before]\ncommand = "apply.sh"\n{before}\n')
        )
    (found,) = caught.value.problems
    assert problem in found


def test_command_must_be_an_executable_of_the_test(write_test: WriteTest) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_test(MATRIX + BEFORE))
    assert "before.command: there is no file 'apply.sh'" in caught.value.problems[0]
    folder = write_command(write_test, MATRIX + BEFORE)
    (folder / "apply.sh").chmod(0o644)
    with pytest.raises(DefinitionError) as caught:
        load_definition(folder)
    assert "'apply.sh' is not executable (run 'chmod +x apply.sh'" in caught.value.problems[0]
