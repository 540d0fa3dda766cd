"""Checks of submit commands, which HTCondor would take for variables if misspelled."""

from __future__ import annotations

import pytest

from treehammer.errors import ConfigError
from treehammer.submit.batch.htcondor.submit_description import (
    RESERVED_COMMANDS,
    check_command_value,
    check_description,
    check_site_commands,
    load_known_commands,
)


@pytest.mark.parametrize(
    "name, suggestion",
    [
        ("acounting_group", "'accounting_group'"),
        ("request_memry", "'request_memory'"),
        ("Periodic_Remov", "'periodic_remove'"),
        ("my favourite", "+my_favourite"),
        ("+", "no submit command"),
    ],
)
def test_misspelled_command_gets_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_site_commands([name], "site SITE_A: submit")
    message = str(caught.value)
    assert "site SITE_A: submit" in message
    assert repr(name) in message
    assert suggestion in message


@pytest.mark.parametrize("name", ["+JobFlavour", "My.Project", "MY.x", "request_fpgas", "Rank"])
def test_site_commands_are_accepted(name: str) -> None:
    check_site_commands([name], "here")


@pytest.mark.parametrize(
    "name, remedy", [("Requirements", "'requirements'"), ("queue", "template")]
)
def test_reserved_command_is_refused(name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"set by Treehammer\n.*{remedy}"):
        check_site_commands([name], "here")


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
