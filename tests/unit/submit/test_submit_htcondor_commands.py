"""Submit commands of HTCondor, and expressions in submit descriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from treehammer.errors import BatchError, ConfigError
from treehammer.submit.batch.htcondor.pool import (
    split_conjunction,
)
from treehammer.submit.batch.htcondor.submit_commands import (
    RESERVED_COMMANDS,
    check_command_value,
    check_description,
    check_site_command,
    load_known_commands,
)
from treehammer.submit.batch.htcondor.submit_description import Submission
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


def test_expression_is_split_into_clauses() -> None:
    text = '((TARGET.Site == "a && b") && (x || y && z)) && (time() > 3) && f(1, 2 && 3)'
    assert split_conjunction(text) == [
        'TARGET.Site == "a && b"',
        "x || y && z",
        "time() > 3",
        "f(1, 2 && 3)",
    ]
    assert split_conjunction("true") == ["true"]


@pytest.mark.parametrize("name", ["+JobFlavour", "My.Project", "MY.x", "request_fpgas", "Rank"])
def test_site_commands_are_accepted(name: str) -> None:
    check_site_command(name, "1", [name])


def test_description_lines_are_checked() -> None:
    check_description(
        "# comment\n\nif version > 23\n  rank = \\\n    Memory\nendif\nmine = 4\n"
        "request_cpus = $(mine)\nMy.Text @=END\nany thing = goes\n@END\n+Own = 1\n",
        "here",
    )
    for text in ("rnak = 1\n", "queue 7\n", "no assignment\n"):
        with pytest.raises(ConfigError, match=r"template\.j2"):
            check_description(text, "template.j2")


@pytest.mark.parametrize(
    "value",
    ["atlas", "atlas-higgs", "long lunch", "user@host", "cms/prod", "2026-01-01 x", "a.b", "'a'", '"a', "x \\", 'x = "y" z'],
)  # fmt: skip
def test_unquoted_string_and_continued_line_are_refused(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_command_value("+Project", value, "here", ["+Project"])
    assert "+Project" in str(caught.value)
    with pytest.raises(ConfigError, match="here"):
        check_description(f"request_cpus = 1\nMy.Project = {value}\nrank = 1\n", "here")


@pytest.mark.parametrize(
    "value",
    ['"atlas"', r'"a \"b\" c"', "true", "3600", "-1.5e3", "RequestMemory", "2 * RequestDisk", "Other + 1", "MY.x", "TARGET.Cpus / 2",
     "ifThenElse(isUndefined(Foo), 1, 2)", 'Foo =?= "x"', "Foo is undefined", '{"a", "b"}', "$(mine)", "QDate + 60", "(JobStatus == 2) && Foo > 1", "Foo ?: 3"],
)  # fmt: skip
def test_expressions_of_attributes_are_accepted(value: str) -> None:
    check_command_value("+Mine", value, "here", ["+Mine", "My.Other"])
    check_command_value("accounting_group", "group_io.user", "here", ["accounting_group"])


def test_known_commands_include_reserved_ones() -> None:
    assert set(RESERVED_COMMANDS) - {"queue"} <= load_known_commands()
    assert {"accounting_group", "x509userproxy", "use_oauth_services"} <= load_known_commands()
