"""Options of ``treehammer bisect``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer import config
from treehammer.submit.cli import bisect_command
from treehammer.submit.tools.bisection_state import BisectionState

TEST_TOML = """
[test]
name = "fixed"
payload = "run.sh"
[matrix]
root = ["none"]
"""


class SearchStarted(Exception):
    """Ends a command when its search begins."""


@pytest.mark.parametrize(
    ("options", "sites", "from_sites"),
    [
        ([], ("local",), ()),
        (["--site", "FAR", "--from", "local"], ("FAR",), ("local",)),
    ],
)
def test_a_site_may_read_the_storage_of_another(
    options: list[str],
    sites: tuple[str, ...],
    from_sites: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "test.toml").write_text(TEST_TOML)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    begun: list[BisectionState] = []

    def begin(state: BisectionState, *_others: object) -> None:
        begun.append(state)
        raise SearchStarted

    monkeypatch.setattr(bisect_command, "BisectionRun", begin)
    settings = config.load_settings({"data_dir": tmp_path / "data"}, environ={}, folder=tmp_path)
    arguments = ["path:/a", "path:/b", str(tmp_path), "--over", "path:/a,path:/b", *options]
    result = CliRunner().invoke(bisect_command.bisect, arguments, obj=settings)
    assert isinstance(result.exception, SearchStarted), result.output
    assert (begun[0].question.sites, begun[0].question.from_sites) == (sites, from_sites)


def test_several_series_are_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    text = TEST_TOML + 'size = ["small", "large"]\n'
    (tmp_path / "test.toml").write_text(text)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    builds = [f"build:{tmp_path / name}" for name in ("a", "b")]
    for build in builds:
        Path(build.removeprefix("build:")).mkdir()
    settings = config.load_settings({"data_dir": tmp_path / "data"}, environ={}, folder=tmp_path)
    arguments = [*builds, str(tmp_path), "--over", ",".join(builds), "--exact"]
    result = CliRunner().invoke(bisect_command.bisect, arguments, obj=settings)
    message = str(result.exception)
    assert "2 series of each build: size=small; size=large" in message, result.output
    assert not (tmp_path / "data" / "spool").exists()
