"""Submit commands of HTCondor, and expressions in submit descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from treehammer.errors import BatchError, ConfigError
from treehammer.submit.batch.htcondor.submit_description import Submission
from treehammer.submit.batch.htcondor.submit_language import (
    RESERVED_COMMANDS,
    check_description,
    check_site_command,
    load_known_commands,
)
from treehammer.submit.batch.interface import JobDescription


def test_reserved_keys_are_refused() -> None:
    job = JobDescription("job", "", {"a": Path("a")})

    def build(text: str, folder: str = "/f") -> str:
        submission = Submission.for_jobs(Path(folder), "c", text, ["job"])
        return submission.full_description(text, [job], spool=True)

    assert "max_materialize" not in build("max_materialize = 5\nuniverse = vanilla")
    for line in ("Log = x", "queue 5", "+TreehammerJob = 1", "a = b \\\nc\nmy.treehammerjob = 1"):
        with pytest.raises(BatchError, match="is set by Treehammer"):
            build(f"universe = vanilla\n{line}\n")
    with pytest.raises(BatchError, match="does not support folder names"):
        build("", folder="/a$b")


@pytest.mark.parametrize("name", ["+JobFlavour", "My.Project", "MY.x", "request_fpgas", "Rank"])
def test_site_commands_are_accepted(name: str) -> None:
    check_site_command(name, "1", ())


def test_description_lines_are_checked() -> None:
    check_description(
        "# comment\n\nif version > 23\n  rank = \\\n    Memory\nendif\nmine = 4\n"
        "request_cpus = $(mine)\nMy.Text @=END\nany thing = goes\n@END\n+Own = 1\n",
        "here",
    )
    for text in ("rnak = 1\n", "queue 7\n", "no assignment\n"):
        with pytest.raises(ConfigError, match=r"template\.j2"):
            check_description(text, "template.j2")


@pytest.mark.parametrize("value", ["x \\", "x\ny"])
def test_continued_line_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"\+Project.*continues on the next line"):
        check_site_command("+Project", value, ())
    with pytest.raises(ConfigError, match="here"):
        check_description("My.Project = x \\\n", "here")


def test_known_commands_include_reserved_ones() -> None:
    assert set(RESERVED_COMMANDS) - {"queue"} <= load_known_commands()
    assert {"accounting_group", "x509userproxy", "use_oauth_services"} <= load_known_commands()
