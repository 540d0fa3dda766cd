"""Commands that undo what a campaign or key brought."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from measurement_factory import STARTED_US, make_campaign_row, make_measurement

from treehammer import config
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    found = config.load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    with Store.open(found.database) as store:
        store.add_campaign(make_campaign_row("c1", name="nightly"), [])
        store.add(
            make_measurement(position=n, campaign_id="c1", started_us=STARTED_US, plausible=True)
            for n in (1, 2)
        )
    return found


def db(settings: config.Settings, *arguments: str) -> Result:
    return CliRunner().invoke(find_command("db"), arguments, obj=settings)


def plausible(settings: config.Settings) -> list[Any]:
    with Store.open(settings.database) as store:
        return [row["plausible"] for row in store.measurements(Selection(), ["plausible"])]


def test_dry_run_counts_and_changes_nothing(settings: config.Settings) -> None:
    done = db(
        settings, "quarantine", "--campaign", "nightly", "--reason", "x", "--dry-run", "--json"
    )
    (count,) = json.loads(done.stdout)
    assert (count["campaign_id"], count["measurements"]) == ("c1", 2)
    assert "nothing was changed" in done.stderr
    assert plausible(settings) == [True, True]
    assert json.loads(db(settings, "audit", "--json").stdout) == []


def test_quarantine_restore_and_delete(settings: config.Settings) -> None:
    done = db(settings, "quarantine", "--campaign", "nightly", "--reason", "wrong clock")
    assert "2 measurements put into quarantine" in done.stderr
    assert plausible(settings) == [False, False]
    assert "2 measurements restored" in db(settings, "restore", "--since", "2026-03-01").stderr
    assert plausible(settings) == [True, True]
    assert "2 measurements deleted" in db(settings, "delete", "--campaign", "c1").stderr
    assert plausible(settings) == []
    trail = json.loads(db(settings, "audit", "--json").stdout)
    assert [(row["action"], row["scope"], row["reason"]) for row in trail] == [
        ("delete", "campaign c1", ""),
        ("restore", "since 2026-03-01 00:00:00", ""),
        ("quarantine", "campaign c1", "wrong clock"),
    ]
    assert "@" in trail[0]["actor"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("restore",), "Give --campaign, --key, --since or --until."),
        (("delete", "--checks", "--campaign", "c1"), "--checks needs --key"),
        (("restore", "--since", "yesterday"), "must be a time such as 2026-03-01"),
        (("restore", "--key", "0" * 12), f"no measurements of key {'0' * 12}"),
        (("quarantine", "--campaign", "c1", "--reason", " "), "must be printable text"),
    ],
)
def test_bad_input_is_refused(
    settings: config.Settings, arguments: tuple[str, ...], message: str
) -> None:
    done = db(settings, *arguments)
    assert done.exit_code
    assert message in done.output + str(done.exception)
    assert plausible(settings) == [True, True]
