"""What the demo tells to type next."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from treehammer import config, demo

OUTPUT = Path("demo-results")


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load({"data_dir": tmp_path}, environ={}, folder=tmp_path)


def program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "treehammer"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_program_is_named_as_the_shell_finds_it(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = program(tmp_path / "my venv" / "bin")
    monkeypatch.setattr(sys, "argv", [str(called), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert demo.again(OUTPUT, settings) == f"'{called}' --data-dir demo-results"
    monkeypatch.setenv("PATH", str(called.parent))
    assert demo.again(OUTPUT, settings) == "treehammer --data-dir demo-results"
    # Another installation's would not do.
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin").parent))
    assert demo.again(OUTPUT, settings) == f"'{called}' --data-dir demo-results"


def test_a_database_that_is_set_does_not_stand_before_the_demos_own(
    settings: config.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["-m"])
    other = replace(settings, database="sqlite:///other.db")
    database = f"sqlite:///{OUTPUT.resolve()}/results.db"
    assert demo.again(OUTPUT, other).endswith(f"--data-dir demo-results --database {database}")
