"""The table [build]: its checks, its part in the identity, and the plan of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from treehammer.collectors.job_spec import BuildCommand
from treehammer.config import load_settings
from treehammer.errors import DefinitionError
from treehammer.hctests import pinned_tests
from treehammer.hctests.definition.definition_loader import load_definition, override_definition
from treehammer.hctests.definition.model import compute_test_hash

WriteTest = Callable[..., Path]

BUILD = """
[build]
command = "make.sh"
files = ["fix.patch"]
outputs = ["libfix.so"]
"""


def write_build(write_test: WriteTest, text: str = BUILD, patch: str = "+1\n") -> Path:
    folder = write_test(text, make_sh="#!/bin/sh\n", fix_patch=patch)
    (folder / "make.sh").chmod(0o755)
    return folder


def test_build_is_read_and_part_of_the_identity(write_test: WriteTest) -> None:
    folder = write_build(write_test)
    definition = load_definition(folder)
    assert definition.build == BuildCommand("make.sh", ("libfix.so",), (), 600.0)
    assert {"make.sh", "fix.patch"} <= set(definition.files)
    assert override_definition(definition, {}, {"repeats": "2"}).build == definition.build
    settings = load_settings({}, environ={}, folder=folder)
    hashes = []
    for text, patch in (
        (BUILD, "+1\n"),
        (BUILD, "+2\n"),
        (f'{BUILD}preload = ["libfix.so"]\n', "+1\n"),
        (f"{BUILD}timeout_s = 5\n", "+1\n"),
    ):
        write_build(write_test, text, patch)
        hashes.append(compute_test_hash(pinned_tests.pin_test(str(folder), settings)))
    assert len({*hashes[:3]}) == 3
    assert hashes[3] == hashes[0]


def test_outputs_are_loaded_without_being_files_of_the_test(write_test: WriteTest) -> None:
    folder = write_build(write_test)
    text = (folder / "test.toml").read_text().replace("[test]", '[test]\nload = ["libfix.so"]', 1)
    (folder / "test.toml").write_text(text)
    definition = load_definition(folder)
    assert definition.libraries == ("libfix.so",)
    assert "libfix.so" not in definition.files


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("outputs = []", "build.outputs: List should have at least 1 item"),
        ('outputs = ["../x.so"]', "'../x.so' is not the name of a file, without a folder"),
        ('outputs = ["a.so"]\npreload = ["b.so"]', "'b.so' is not built: add it to outputs"),
        ('outputs = ["a.so"]\nfiles = ["no.c"]', "build.files: there is no file 'no.c'"),
        ('outputs = ["a.so"]\ntimeout_s = 0', "build.timeout_s: 0 is wrong"),
    ],
)
def test_mistakes_name_their_key(write_test: WriteTest, keys: str, problem: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write_build(write_test, f'[build]\ncommand = "make.sh"\n{keys}\n'))
    (found,) = caught.value.problems
    assert problem in found


def test_folder_of_the_build_is_an_environment_value(write_test: WriteTest) -> None:
    environment = '[environment]\nPLUGINS = "{build}"\n'
    assert load_definition(write_build(write_test, BUILD + environment)).environment
    with pytest.raises(DefinitionError, match="'build' is not an axis"):
        load_definition(write_test(environment))
