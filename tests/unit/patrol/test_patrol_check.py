"""Messages of ``treehammer patrol check`` about files that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.errors import ConfigError
from treehammer.patrol.cli import patrol_commands

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


def test_each_problem_is_one_readable_line(tmp_path: Path) -> None:
    (tmp_path / "patrol.toml").write_text(PATROL_TOML)
    settings = config.load_settings({"data_dir": tmp_path / "data"}, environ={}, folder=tmp_path)
    with pytest.raises(ConfigError) as raised:
        CliRunner().invoke(
            patrol_commands.patrol,
            ["check", str(tmp_path / "patrol.toml")],
            obj=settings,
            catch_exceptions=False,
            standalone_mode=False,
        )
    first, moved, release = str(raised.value).splitlines()
    assert first.endswith("2 entries cannot start")
    assert f"moved: {tmp_path / 'moved'}: no such repository. Name a test" in moved
    assert release.strip() == (
        f"release: releases.source {tmp_path / 'releases.txt'}: "
        "cannot be read (No such file or directory)"
    )
