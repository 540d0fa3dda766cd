"""Commands ``sites list``, ``sites check`` and ``sites schema`` without a grid."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from plan_factory import make_settings

from treehammer.config import Settings
from treehammer.errors import ConfigError, DatasetError, ExitCode, NothingToDoError, SitesError
from treehammer.submit.cli.sites_commands import sites
from treehammer.submit.sites import sites_schema

SITES_TOML = """
[sites.DESK]
labels = ["near", "mine"]
storage = "ext4"
ceilings = { jobs = 1000, in_flight = 50, bytes_per_day = "10 TB", mb_per_s = 100 }
doors = [
  { name = "file", protocol = "file", prefix = "data" },
  { name = "gone", protocol = "file", prefix = "gone" },
]
"""


@pytest.fixture
def command_settings(tmp_path: Path) -> Settings:
    (tmp_path / "sites.toml").write_text(SITES_TOML, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "f.root").write_bytes(b"x" * 2000)
    return dataclasses.replace(make_settings(tmp_path), sites_file=tmp_path / "sites.toml")


def run_sites(command_settings: Settings, *arguments: str) -> Result:
    return CliRunner().invoke(
        sites, arguments, obj=command_settings, standalone_mode=False, catch_exceptions=False
    )


def test_list_shows_doors_labels_and_ceilings(command_settings: Settings) -> None:
    rows = json.loads(run_sites(command_settings, "list", "--json").stdout)
    assert [(row["site"], row["door_name"]) for row in rows] == [
        ("local", "file"),
        ("DESK", "file"),
        ("DESK", "gone"),
    ]
    assert rows[1]["labels"] == ["near", "mine"]
    assert rows[1]["ceilings"]["bytes_per_day"] == 10_000_000_000_000
    assert rows == [
        row
        | {
            key: json.loads(row[key]) if row[key] else None
            for key in ("labels", "ceilings", "door_load", "door_settings", "door_token_pools")
        }
        for row in csv.DictReader(io.StringIO(run_sites(command_settings, "list", "--csv").stdout))
    ]
    words = " ".join(run_sites(command_settings, "list").stdout.split())
    for word in ("near, mine", "1,000 jobs", "50 in", "10.0 TB", "100 MB/s"):
        assert word in words


def test_failed_check_exits_with_1(command_settings: Settings) -> None:
    done = run_sites(command_settings, "check", "--json")
    assert done.return_value == ExitCode.REGRESSION
    good, gone = json.loads(done.stdout)
    assert (good["result"], good["finding"]) == ("ok", "read 1024 bytes of f.root")
    assert (gone["result"], gone["check"]) == ("failed", "door gone")
    assert gone["finding"].startswith("there is no ")
    assert "Correct the prefix" in gone["remedy"]
    shown = run_sites(command_settings, "check", "label:mine")
    assert "Correct the prefix" in " ".join(shown.stdout.split())
    assert "1 of 2 checks failed" in shown.stderr


def test_successful_check_exits_with_0(command_settings: Settings) -> None:
    assert command_settings.sites_file
    (command_settings.sites_file.parent / "gone").mkdir()
    assert run_sites(command_settings, "check", "DESK").return_value == ExitCode.DONE


def test_unknown_site_or_dataset_is_refused(command_settings: Settings) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'DESK'"):
        run_sites(command_settings, "check", "DESC")
    with pytest.raises(NothingToDoError, match="no site given"):
        run_sites(command_settings, "check", ",")
    with pytest.raises(DatasetError, match="nothing"):
        run_sites(command_settings, "check", "--dataset", "nothing")


def test_schema_is_printed(command_settings: Settings) -> None:
    assert (
        json.loads(run_sites(command_settings, "schema").stdout) == sites_schema.build_json_schema()
    )


def test_invalid_sites_file_exits_with_2(command_settings: Settings) -> None:
    assert command_settings.sites_file
    command_settings.sites_file.write_text("[sites.A]\nlabel = 3\n", encoding="utf-8")
    with pytest.raises(SitesError, match=r"sites\.toml: 2 mistakes(?s:.*)unknown key") as caught:
        run_sites(command_settings, "list")
    assert caught.value.exit_code == ExitCode.USAGE
