"""Commands that the demo suggests at its end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from treehammer import config, start_commands

OUTPUT = Path("demo-results")


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    return config.load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)


def program(folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / "treehammer"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_program_is_named_as_found_on_path(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = program(tmp_path / "my venv" / "bin")
    monkeypatch.setattr(sys, "argv", [str(called), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert (
        start_commands.format_invocation(OUTPUT, settings) == f"'{called}' --data-dir demo-results"
    )
    monkeypatch.setenv("PATH", str(called.parent))
    assert (
        start_commands.format_invocation(OUTPUT, settings) == "treehammer --data-dir demo-results"
    )
    # A program of another installation does not count.
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin").parent))
    assert (
        start_commands.format_invocation(OUTPUT, settings) == f"'{called}' --data-dir demo-results"
    )


def test_changed_settings_become_flags(
    settings: config.Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Print the command with flags for settings that differ from those of the shell."""
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.chdir(tmp_path)
    plain = ["--data-dir", "demo-results"]
    assert start_commands.required_flags(OUTPUT, config.load_settings()) == plain
    elsewhere = replace(settings, cache_dir=tmp_path / "elsewhere")
    assert start_commands.required_flags(OUTPUT, elsewhere) == [
        *plain,
        "--cache-dir",
        str(elsewhere.cache_dir),
    ]
    monkeypatch.setenv("TREEHAMMER_DATABASE", "sqlite:///other.db")
    (tmp_path / "treehammer.toml").write_text("local_slots = 4\n")
    database = f"sqlite:///{tmp_path}/demo-results/results.db"
    found = start_commands.required_flags(OUTPUT, config.load_settings())
    assert found == [*plain, "--database", database, "--local-slots", "1"]
    assert (
        start_commands.format_invocation(OUTPUT, config.load_settings())
        == f"treehammer {' '.join(found)}"
    )
