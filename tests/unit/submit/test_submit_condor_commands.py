"""Submit commands: slips are found before HTCondor takes them for variables."""

from __future__ import annotations

import pytest

from treehammer.errors import ConfigError
from treehammer.submit.batch.htcondor.known_commands import (
    RESERVED_COMMANDS,
    check_description,
    check_site_commands,
    load_known_commands,
)


@pytest.mark.parametrize(
    "name, said",
    [
        ("acounting_group", "'accounting_group'"),
        ("request_memry", "'request_memory'"),
        ("Periodic_Remov", "'periodic_remove'"),
        ("my favourite", "+my_favourite"),
        ("+", "no submit command"),
    ],
)
def test_a_slip_names_site_key_and_what_is_near(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_site_commands([name], "site SITE_A: submit")
    message = str(caught.value)
    assert "site SITE_A: submit" in message
    assert repr(name) in message
    assert said in message


@pytest.mark.parametrize("name", ["+JobFlavour", "My.Project", "MY.x", "request_fpgas", "Rank"])
def test_what_a_site_may_add(name: str) -> None:
    check_site_commands([name], "here")


@pytest.mark.parametrize(
    "name, instead", [("Requirements", "'requirements'"), ("queue", "template")]
)
def test_what_is_filled_in_cannot_be_added(name: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"filled in by Treehammer\n.*{instead}"):
        check_site_commands([name], "here")


def test_descriptions() -> None:
    check_description(
        "# comment\n\nif version > 23\n  rank = \\\n    Memory\nendif\nmine = 4\n"
        "request_cpus = $(mine)\nMy.Text @=END\nany thing = goes\n@END\n+Own = 1\n",
        "here",
    )
    for text in ("rnak = 1\n", "queue 7\n", "what is this\n"):
        with pytest.raises(ConfigError, match=r"template\.j2"):
            check_description(text, "template.j2")


def test_the_list_holds_what_templates_and_sites_need() -> None:
    assert set(RESERVED_COMMANDS) - {"queue"} <= load_known_commands()
    assert {"accounting_group", "x509userproxy", "use_oauth_services"} <= load_known_commands()
