"""Messages of ``treehammer patrol check`` about files that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.errors import ConfigError
from treehammer.patrol import cli

PATROL_TOML = """
[releases]
source = "./releases.txt"
[entries.moved]
repository = "./moved"
path = "read"
branch = "main"
sites = ["local"]
[entries.release]
test = "ttree-read"
releases = true
sites = ["local"]
"""


MISTAKEN_TOML = """
[entries.daily]
test = "ttree-read"
every = "1d"
sites = ["local"]
axes = {cache = ["hot"]}
set = {repeat = 3}
"""


ELSEWHERE_TOML = """
[entries.daily]
test = "ttree-read"
every = "1d"
sites = ["local"]
from = ["SITE_Z"]
"""


COMPARED_TOML = """
[entries.idea]
repository = "./moved"
branch = "main"
sites = ["local"]
compare_at = ["SITE_Z"]
"""


def check_file(text: str, folder: Path) -> list[str]:
    """Check a file that cannot start; return the lines of the message."""
    (folder / "patrol.toml").write_text(text)
    settings = config.load_settings({"data_dir": folder / "data"}, environ={}, folder=folder)
    with pytest.raises(ConfigError) as raised:
        CliRunner().invoke(
            cli.patrol,
            ["check", str(folder / "patrol.toml")],
            obj=settings,
            catch_exceptions=False,
            standalone_mode=False,
        )
    return str(raised.value).splitlines()


def test_each_problem_is_one_readable_line(tmp_path: Path) -> None:
    first, moved, release = check_file(PATROL_TOML, tmp_path)
    assert first.endswith("2 entries cannot start")
    assert f"moved: {tmp_path / 'moved'}: no such repository. Name a test" in moved
    assert release.strip() == (
        f"release: releases.source {tmp_path / 'releases.txt'}: "
        "cannot be read (No such file or directory)"
    )


def test_mistakes_are_named_by_the_keys_of_the_patrol_file(tmp_path: Path) -> None:
    lines = [line.strip() for line in check_file(MISTAKEN_TOML, tmp_path)]
    assert lines[2].startswith("entries.daily.axes.cache: unknown value 'hot'")
    assert lines[3].startswith("entries.daily.set.repeat: unknown key")


def test_unknown_sites_are_named_by_the_keys_of_the_patrol_file(tmp_path: Path) -> None:
    _, line, *_ = check_file(ELSEWHERE_TOML, tmp_path)
    assert line.strip().startswith("daily: entries.daily.from: unknown site 'SITE_Z'")


def test_budget_of_an_unknown_site_is_refused(tmp_path: Path) -> None:
    text = ELSEWHERE_TOML.replace('from = ["SITE_Z"]', "[budget.sites.lokal]\ncpu_hours = 1")
    first, second = check_file(text, tmp_path)
    assert first.endswith("budget.sites: unknown site 'lokal'")
    assert "Did you mean 'local'?" in second


NEVER_TOML = """
[budget]
cpu_hours = 0.001
[entries.awake]
test = "./shell"
every = "1d"
sites = ["local"]
quiet_hours = ["00:00-12:00", "12:00-00:00"]
[entries.large]
test = "./shell"
every = "1d"
sites = ["local"]
[entries.paced]
test = "./shell"
every = "1d"
sites = ["local"]
jobs_in_flight = 3
[entries.small]
test = "./shell"
every = "1d"
sites = ["local"]
set = {wall_limit_s = "1", repeats = "1"}
"""


def test_entries_that_never_start_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shell").mkdir()
    (tmp_path / "shell" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "shell" / "run.sh").chmod(0o755)
    (tmp_path / "shell" / "test.toml").write_text(
        '[test]\nname = "shell"\npayload = "run.sh"\nwall_limit_s = 60\n[matrix]\nroot = ["none"]\n'
    )
    lines = [line.strip() for line in check_file(NEVER_TOML, tmp_path)]
    assert lines[0].endswith("3 entries cannot start")
    assert lines[1].startswith("awake: entries.awake.quiet_hours: never starts: its quiet hours")
    assert "large: entries.large: never starts: a campaign needs more than the budget" in lines[2]
    assert lines[4].startswith("paced: --spread, --ramp, --in-flight: the local queue")


def test_unknown_sites_of_comparisons_are_named(tmp_path: Path) -> None:
    _, line, *_ = check_file(COMPARED_TOML, tmp_path)
    assert "entries.idea.compare_at" in line
    assert "SITE_Z" in line
