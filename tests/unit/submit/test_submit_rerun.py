"""The command that runs a campaign again asks for the same."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from measurement_factory import make_campaign_row
from plan_factory import READING_TEST, SHELL_TEST, make_pinned_test, make_settings

from treehammer.hctests.cli.definition_options import load_pinned_test, parse_axis_options
from treehammer.hctests.matrix.definition import PinnedTest
from treehammer.submit.lifecycle import rerun
from treehammer.submit.planning.plan import _canonical_request
from treehammer.submit.sites.site_model import Door, Site

SHIPPED = ("ttree-read", "nanoaod-read", "access-modes", "formats-read")


def asked_again(pinned: PinnedTest, tmp_path: Path, where: Path) -> tuple[list[str], PinnedTest]:
    """The words of the command, and the test as they change it."""
    site = Site("SITE_A", "local", (Door("file", "file", ""),))
    row = make_campaign_row(
        repository=pinned.repository,
        commit_id=pinned.commit,
        plan=_canonical_request(pinned, [site], None),
    )
    words = shlex.split(rerun.rerun_command(row))
    axes = parse_axis_options(words[n + 1] for n, word in enumerate(words) if word == "-P")
    given = [words[n + 1] for n, word in enumerate(words) if word == "-S"]
    keys = dict(text.split("=", 1) for text in given)
    return words, load_pinned_test(str(where), axes, keys, make_settings(tmp_path))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_test_as_it_was_changed_for_one_campaign(tmp_path: Path, name: str) -> None:
    settings = make_settings(tmp_path)
    axes = {"root": ("6.38.00", "wrap:apptainer exec a,b"), "cache_mb": ("0", "2.5")}
    changed = load_pinned_test(name, axes, {"repeats": "7", "seed": "3"}, settings)
    words, found = asked_again(changed, tmp_path, Path(name))
    assert found.definition == changed.definition
    assert words[:2] == ["treehammer", "submit"]
    assert words[words.index("--sites") + 1] == "SITE_A"
    assert words[words.index("--breaker") + 1] == "off"


@pytest.mark.parametrize(
    "text",
    [
        READING_TEST,
        SHELL_TEST,
        SHELL_TEST
        + 'flag = [true, false]\nn = [1, 2.5]\nword = ["a,b", "c d"]\n[settings]\nwords = "two words"\nnumber = 3\n',
    ],
)
def test_a_test_of_ones_own(tmp_path: Path, text: str) -> None:
    pinned = make_pinned_test(tmp_path / "test", text)
    _, found = asked_again(pinned, tmp_path, tmp_path / "test")
    assert found.definition == pinned.definition


def test_where_the_test_came_from() -> None:
    row = make_campaign_row(
        plan="{}", repository="https://example.org/a b.git", commit_id="c0ffee", test_path="x"
    )
    assert rerun.rerun_command(row) == "treehammer submit 'https://example.org/a b.git@c0ffee:x'"
    assert rerun.rerun_command(row, "render").startswith("treehammer render ")
    folder = replace(
        row, commit_id="", repository="/home/me/test", plan=json.dumps({"breaker": "50%/10"})
    )
    assert rerun.rerun_command(folder) == "treehammer submit /home/me/test"
