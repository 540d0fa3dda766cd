"""Commands on the states of sites."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cli_verbs import find_command
from click.testing import CliRunner, Result
from status_story import make_recent_runs

from treehammer.config import load_settings
from treehammer.errors import ConfigError
from treehammer.sql.write.store import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Fill a database with runs of the last hours: all good at SITE_A, all failed at SITE_B."""
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add(make_recent_runs({"SITE_A": True, "SITE_B": False}))
    return tmp_path


def run_state_command(folder: Path, *arguments: str) -> Result:
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    return CliRunner().invoke(find_command("sites"), arguments, obj=settings)


def list_states(folder: Path, *arguments: str) -> dict[tuple[str, str], str]:
    rows = json.loads(run_state_command(folder, "status", "--json", *arguments).stdout)
    return {(row["site"], row["of"]): row["state"] for row in rows}


def test_states_are_evaluated_and_shown(folder: Path) -> None:
    assert "sites evaluate" in str(run_state_command(folder, "status").exception)
    evaluated = run_state_command(folder, "evaluate")
    assert evaluated.exit_code == 0
    assert "critical" in evaluated.stdout
    assert list_states(folder) == {
        ("SITE_B", "jobs"): "critical",
        ("SITE_B", "storage"): "critical",
        ("SITE_A", "jobs"): "ok",
        ("SITE_A", "storage"): "ok",
    }
    shown = run_state_command(folder, "status", "--site", "SITE_B", "--history").output
    assert "unknown" in shown
    assert "by rules" in shown
    [row, *_] = json.loads(run_state_command(folder, "status", "--site", "SITE_B", "--json").stdout)
    assert row["evidence"]["failures"] == {"open": 12} or row["cause"] == "exclusion"
    assert row["evidence"]["measurements"]


def test_an_override_is_shown_at_once(folder: Path) -> None:
    done = run_state_command(
        folder, "override", "SITE_A", "warning", "--why", "new disks", "--until", "2d"
    )
    assert done.exit_code == 0, done.output
    assert list_states(folder, "--site", "SITE_A")["SITE_A", "jobs"] == "warning"
    ended = run_state_command(folder, "end-override", "SITE_A", "--by", "ada")
    assert "follows the rules" in ended.output
    assert list_states(folder, "--site", "SITE_A")["SITE_A", "jobs"] == "ok"
    assert "no override" in str(run_state_command(folder, "end-override", "SITE_A").exception)
    typo = run_state_command(folder, "override", "SITE_AA", "ok", "--why", "x", "--until", "2d")
    assert "unknown site 'SITE_AA'" in str(typo.exception)
    assert "Did you mean 'SITE_A'?" in str(typo.exception)
    past = run_state_command(
        folder, "override", "SITE_A", "ok", "--why", "x", "--until", "2020-01-01"
    )
    assert "in the past" in str(past.exception)


def test_a_downtime_is_imported_and_withdrawn(folder: Path) -> None:
    file = folder / "downtimes.json"
    hour = 3600
    now = round(time.time())
    file.write_text(
        json.dumps(
            [{"site": "B", "start": now - 30 * hour, "end": now + hour, "services": "xrootd"}]
        )
    )
    imported = run_state_command(folder, "downtimes", "import", str(file), "--map", "B=SITE_B")
    assert imported.output == "1 new, 0 changed, 0 unchanged, 0 withdrawn\n"
    [row] = json.loads(run_state_command(folder, "downtimes", "list", "--json").stdout)
    assert (row["site"], row["of"], row["severity"]) == ("SITE_B", "storage", "outage")
    run_state_command(folder, "evaluate")
    assert list_states(folder, "--site", "SITE_B")["SITE_B", "storage"] == "downtime"
    file.write_text("[]")
    assert "1 withdrawn" in run_state_command(folder, "downtimes", "import", str(file)).output
    assert json.loads(run_state_command(folder, "downtimes", "list", "--json").stdout) == []


def test_a_downtime_of_a_host_is_of_the_site_of_its_door(tmp_path: Path) -> None:
    """Before the first measurement, too."""
    (tmp_path / "sites.toml").write_text(
        '[[sites.SITE_A.doors]]\nname = "x"\nprotocol = "root"\nprefix = "root://se.example//d"\n'
    )
    file = tmp_path / "downtimes.xml"
    start = round(time.time())
    entries = [
        f"<DOWNTIME ID='{number}'><HOSTNAME>{host}</HOSTNAME>{site}<SEVERITY>OUTAGE</SEVERITY>"
        f"<START_DATE>{start}</START_DATE><END_DATE>{start + 3600}</END_DATE></DOWNTIME>"
        for number, (host, site) in enumerate(
            [("se.example", ""), *[("x.example", "<HOSTED_BY>T2_YY</HOSTED_BY>")] * 2]
        )
    ]
    file.write_text(f"<results>{''.join(entries)}</results>")
    settings = load_settings(
        {"data_dir": tmp_path, "sites_file": tmp_path / "sites.toml"}, environ={}, folder=tmp_path
    )
    words = ["downtimes", "import", str(file)]
    imported = CliRunner().invoke(find_command("sites"), words, obj=settings)
    assert imported.stdout == "1 new, 0 changed, 0 unchanged, 0 withdrawn\n"
    assert imported.stderr == "refused: entry 2: unknown site 'T2_YY'.\n"
    file.write_text(f"<results>{entries[1]}</results>")
    refused = CliRunner().invoke(find_command("sites"), words, obj=settings)
    assert "--map NAME=SITE" in str(refused.exception)
    assert "Known: SITE_A, local." in str(refused.exception)
    listed = CliRunner().invoke(
        find_command("sites"), ["downtimes", "list", "--json"], obj=settings
    )
    [row] = json.loads(listed.stdout)
    assert (row["site"], row["of"], row["severity"]) == ("SITE_A", "storage", "outage")


def test_sites_that_nobody_knows_are_refused(folder: Path) -> None:
    file = folder / "downtimes.json"
    file.write_text('[{"site": "SITE_AA", "start": "2026-03-02", "end": "2026-03-03"}]')
    run_state_command(folder, "evaluate")
    for arguments in (
        ["downtimes", "import", str(file)],
        ["downtimes", "import", str(file), "--site", "SITE_AA"],
        ["downtimes", "import", str(file), "--map", "SITE_AA=SITE_AA"],
        ["status", "--site", "SITE_AA"],
        ["end-override", "SITE_AA"],
    ):
        refused = run_state_command(folder, *arguments)
        assert isinstance(refused.exception, ConfigError), arguments
        assert "Did you mean 'SITE_A'?" in str(refused.exception)
    assert (
        json.loads(run_state_command(folder, "downtimes", "list", "--json", "--all").stdout) == []
    )


def test_rules_are_listed_and_checked(folder: Path) -> None:
    shown = run_state_command(folder, "rules")
    assert "exclusion" in shown.stdout
    assert "Central event" in shown.stderr
    wrong = folder / "rules.toml"
    wrong.write_text('[rules.mine]\nkind = "shares"\n')
    assert "known: share, operations, tests" in str(
        run_state_command(folder, "rules", str(wrong)).exception
    )
