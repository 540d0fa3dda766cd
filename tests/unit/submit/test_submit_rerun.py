"""Command line that repeats a campaign."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from measurement_factory import make_campaign_row
from plan_factory import READING_TEST, SHELL_TEST, make_pinned_test, make_settings

from treehammer.hctests.cli import parse_axis_options
from treehammer.hctests.definition.model import PinnedTest
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.campaigns import campaign_outcome
from treehammer.submit.planning.plan import _canonical_request
from treehammer.submit.planning.site_selection import SiteSelection
from treehammer.submit.sites.site_model import Door, Site

SHIPPED = ("ttree-read", "nanoaod-read", "access-modes", "formats-read")


def parse_rerun_command(
    pinned: PinnedTest, tmp_path: Path, location: Path
) -> tuple[list[str], PinnedTest]:
    """Return the words of the command and the test that they define."""
    site = Site("SITE_A", "local", (Door("file", "file", ""),))
    row = make_campaign_row(
        repository=pinned.repository,
        commit_id=pinned.commit,
        plan=_canonical_request(pinned, SiteSelection((site,)), ()),
    )
    words = shlex.split(campaign_outcome.rerun_command(row))
    axes = parse_axis_options(words[n + 1] for n, word in enumerate(words) if word == "-P")
    options = [words[n + 1] for n, word in enumerate(words) if word == "-S"]
    keys = dict(text.split("=", 1) for text in options)
    return words, load_pinned_test(str(location), axes, keys, make_settings(tmp_path))


@pytest.mark.parametrize("name", SHIPPED)
def test_command_repeats_overrides_of_shipped_test(tmp_path: Path, name: str) -> None:
    settings = make_settings(tmp_path)
    axes = {"root": ("6.38.00", "wrap:apptainer exec a,b"), "cache_mb": ("0", "2.5")}
    changed = load_pinned_test(name, axes, {"repeats": "7", "seed": "3"}, settings)
    words, repeated = parse_rerun_command(changed, tmp_path, Path(name))
    assert repeated.definition == changed.definition
    assert words[:2] == ["treehammer", "submit"]
    assert words[words.index("--sites") + 1] == "SITE_A"


@pytest.mark.parametrize(
    "text",
    [
        READING_TEST,
        SHELL_TEST,
        SHELL_TEST
        + 'flag = [true, false]\nn = [1, 2.5]\nword = ["a,b", "c d"]\n[settings]\nwords = "two words"\nnumber = 3\n',
    ],
)
def test_command_repeats_own_test(tmp_path: Path, text: str) -> None:
    pinned = make_pinned_test(tmp_path / "test", text)
    _, repeated = parse_rerun_command(pinned, tmp_path, tmp_path / "test")
    assert repeated.definition == pinned.definition


def test_command_names_source_of_test() -> None:
    row = make_campaign_row(
        plan="{}", repository="https://example.org/a b.git", commit_id="c0ffee", test_path="x"
    )
    assert (
        campaign_outcome.rerun_command(row)
        == "treehammer submit 'https://example.org/a b.git@c0ffee:x'"
    )
    assert campaign_outcome.rerun_command(row, "render").startswith("treehammer render ")
    folder = replace(
        row, commit_id="", repository="/home/me/test", plan=json.dumps({"excluded": {"B": "down"}})
    )
    assert campaign_outcome.rerun_command(folder) == "treehammer submit /home/me/test"
