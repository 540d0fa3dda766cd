"""Patrol files: values, defaults, mistakes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from treehammer import patrol
from treehammer.errors import PatrolFileError
from treehammer.patrol import cli
from treehammer.patrol.patrol_file import PatrolFile, build_patrol_schema, parse_patrol_file
from treehammer.sql.watch.patrol_starts import SiteLimits

PATH = Path("/somewhere/patrol.toml")
PUBLISHED = Path(patrol.__file__).parent / "patrol.schema.json"
GUIDE = Path(__file__).parents[3] / "docs" / "patrol.md"
FULL = """
[patrol]
timezone = "Europe/Zurich"
quiet_hours = ["22:00-06:00"]
jitter = "5m"
time_limit = "12h"

[releases]
source = "pypi"

[budget]
cpu_hours = 20
bytes = "2 TB"
[budget.sites.SITE_A]
cpu_hours = 5

[entries.hourly]
test = "ttree-read"
sites = ["all"]
every = "1h"
axes = {cache_mb = [0, 30], root = ["6.40.00"]}
set = {repeats = 2}

[entries.idea]
repository = "../client"
path = "tests/read"
branch = "main"
sites = ["label:eos", "SITE_A"]
in_flight = 2
jitter = "0"

[entries.release]
test = "ttree-read"
releases = true
sites = ["SITE_A"]
from = ["SITE_B", "SITE_C"]
"""


def parse(text: str) -> PatrolFile:
    return parse_patrol_file(text, PATH)


def list_mistakes(text: str) -> str:
    with pytest.raises(PatrolFileError) as caught:
        parse(text)
    return "\n".join(caught.value.problems)


def test_values_and_defaults() -> None:
    content = parse(FULL)
    hourly, idea, release = content.entries
    assert hourly.times is not None
    assert (hourly.times.every_s, hourly.times.jitter_s) == (3600, 300)
    assert hourly.axes == {"cache_mb": ("0", "30"), "root": ("6.40.00",)}
    assert hourly.overrides == {"repeats": "2"}
    assert (hourly.time_limit_s, hourly.quiet.timezone) == (43_200, "Europe/Zurich")
    assert idea.spec_at("a" * 40) == f"/client@{'a' * 40}:tests/read"
    assert (idea.times, idea.in_flight, idea.follows) == (None, 2, "branch main")
    assert (release.follows, release.spec_at("")) == ("ROOT releases", "ttree-read")
    assert (release.from_sites, idea.from_sites) == (("SITE_B", "SITE_C"), ())
    assert release.shown_sites == "SITE_A from SITE_B, SITE_C"
    assert content.limits_of("SITE_A") == SiteLimits(5 * 3600, 2 * 10**12)
    assert content.limits_of("SITE_B") == SiteLimits(20 * 3600, 2 * 10**12)
    assert [entry.test_name for entry in content.entries] == ["ttree-read", "read", "ttree-read"]


@pytest.mark.parametrize(
    "old, new, mistake",
    [
        ('every = "1h"', 'evry = "1h"', "20: entries.hourly.evry: unknown key of [entries]"),
        ('every = "1h"', 'every = "soon"', "20: entries.hourly.every: 'soon' is wrong"),
        ('every = "1h"', 'every = "1m"', "jitter of 300 s is longer than every"),
        ('every = "1h"', 'tags = "v*"', "applies only to a repository"),
        ('branch = "main"', 'branch = "main"\ntags = "v*"', "cannot be combined with branch"),
        ('branch = "main"', "", "needs a ref (add branch, tags or commit)"),
        ('every = "1h"', 'every = "1h"\ncompare_at = ["A"]', "applies only to a branch"),
        ('source = "pypi"', 'source = "pypi"\nvalue = "6"', "lacks {version}"),
        ('"22:00-06:00"', '"22-6"', "expected hours such as"),
        ('"Europe/Zurich"', '"Mars/Base"', "is not a time zone"),
        ("cpu_hours = 20", "cpu_hours = -1", "-1 is wrong (expected more than 0"),
        ('sites = ["all"]', "", "entries.hourly.sites: is missing"),
        ("releases = true", "releases = false", "never starts"),
        ("from = [", "form = [", "set); did you mean 'from'?"),
    ],
)
def test_mistakes_name_line_key_and_remedy(old: str, new: str, mistake: str) -> None:
    assert old in FULL
    listed = list_mistakes(FULL.replace(old, new, 1))
    assert mistake in listed
    assert listed.startswith("/somewhere/patrol.toml:")


def test_all_mistakes_are_reported_at_once() -> None:
    text = FULL.replace('"all"', "1").replace("in_flight = 2", "in_flight = 0")
    assert len(list_mistakes(text).splitlines()) == 2
    assert "has no entry" in list_mistakes("[patrol]\n")
    assert ":1: not valid TOML" in list_mistakes("[patrol\n")
    assert 'Text needs quotes: jitter = "10m"' in list_mistakes(
        "[patrol]\njitter = 10m # a while\n"
    )
    assert "quotes" not in list_mistakes("[patrol]\njitter = 10\njitter = 20\n")


def test_published_schema_is_up_to_date() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == build_patrol_schema(), (
        "run: treehammer patrol schema > src/treehammer/patrol/patrol.schema.json"
    )
    assert json.loads(CliRunner().invoke(cli.patrol, ["schema"]).stdout) == published
    jsonschema.Draft202012Validator.check_schema(published)
    example = GUIDE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    for text in (FULL, example):
        jsonschema.validate(tomllib.loads(text), published)
        parse(text)


def test_schema_shows_defaults_as_written() -> None:
    tables = build_patrol_schema()["$defs"].values()
    durations = {
        key: value["default"]
        for table in tables
        for key, value in table["properties"].items()
        if value.get("type") == "string" and value.get("default")
    }
    assert durations["time_limit"] == "1d"
    assert all(isinstance(default, str) for default in durations.values())


@pytest.mark.parametrize(
    "text",
    [
        "[entriez.daily]\n",
        "[entries.daily]\ntest = 'ttree-read'\n",
        "[entries.daily]\nsites = ['all']\nin_flight = 0\n",
        "[budget]\ncpu_hours = 0\n",
        "[patrol]\nlook_every = 60\n",
    ],
)
def test_schema_rejects_mistakes(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), build_patrol_schema())
    list_mistakes(text)
