"""Datasets placed and probed through a real Rucio by ordinary accounts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import daemon_faults
import pytest
import replica_files
import rucio_users
from grid_fixtures import Grid
from rucio_users import RucioUser, hammer, restored
from tiny_dataset import write_dataset

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.sql.write.store import Store

__all__ = ["hammer", "restored"]

SITES = ("SITE_A", "SITE_B", "SITE_C")
ALL = "treehammer=True"


@pytest.fixture(scope="module")
def guest(rucio_grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> RucioUser:
    return RucioUser(rucio_grid, tmp_path_factory.mktemp("guest"), "guest")


@pytest.fixture(scope="module")
def placed(hammer: RucioUser) -> str:
    """Place a dataset at all sites, save the command's output, and return its name."""
    write_dataset(hammer.datasets, "placed", make_files())
    printed = hammer.run_datasets("place", "placed", "--sites", "all", "--lifetime", "2d")
    (hammer.home / "printed").write_text(printed)
    return "placed"


def make_files(size: int = 400_000) -> dict[str, bytes]:
    return {"one.root": os.urandom(size), "two.root": os.urandom(1000)}


def test_place_creates_verified_replicas_at_all_sites(hammer: RucioUser, placed: str) -> None:
    printed = (hammer.home / "printed").read_text()
    assert printed.count("complete  3 of 3") == len(SITES)
    assert "quota left" in printed  # printed first
    assert hammer.replica_states(placed) == dict.fromkeys(SITES, "good")
    assert hammer.replica_states(placed, "--full") == dict.fromkeys(SITES, "good")
    words = ("verify", placed, "--sites", "all", "--door", "rucio", "--door", "rucio-pinned")
    assert {(row["site"], row["door"]) for row in hammer.datasets_rows(*words)} == {
        (site, door) for site in SITES for door in ("rucio", "rucio-pinned")
    }


def test_repeated_place_only_extends_lifetimes(hammer: RucioUser, placed: str) -> None:
    before = {rule.id: rule for rule in hammer.own_rules(placed)}
    assert {rule.expression for rule in before.values()} == {f"{site}_DATA" for site in SITES}
    words = ("--sites", "SITE_A,SITE_B", "--lifetime", "3d", "--no-wait")
    rows = hammer.datasets_rows("place", placed, *words)
    assert [(row["state"], row["progress"]) for row in rows] == [("complete", "3 of 3")] * 2
    after = {rule.id: rule for rule in hammer.own_rules(placed)}
    assert set(after) == set(before)
    ends = sorted(rule.expires_at - time.time() for rule in after.values() if rule.expires_at)
    assert [round(seconds / 86_400) for seconds in ends] == [2, 3, 3]


def test_plan_needs_no_local_files(hammer: RucioUser, placed: str, tmp_path: Path) -> None:
    elsewhere = RucioUser(hammer.grid, tmp_path, "hammer")
    catalogue = RucioCatalogue(elsewhere.settings)
    manifest = FolderCatalogue(hammer.datasets).manifest(placed)
    assert catalogue.manifest(placed) == manifest
    replicas = catalogue.replicas(placed, "root", ["SITE_A", "SITE_C"])
    assert [(replica.site, replica.file) for replica in replicas] == [
        (site, file.name) for site in ("SITE_A", "SITE_C") for file in manifest.files
    ]
    assert catalogue.replicas(placed, "root", ["NOWHERE"]) == ()
    assert all(
        replica.url.endswith(replica.path) and replica.path.startswith("hctest/")
        for replica in replicas
    )
    assert elsewhere.replica_states(placed) == dict.fromkeys(SITES, "good")


def test_name_with_other_content_is_refused(guest: RucioUser, placed: str) -> None:
    write_dataset(guest.datasets, placed, make_files())
    message = guest.refused_message("place", placed, "--sites", "SITE_A", code=2)
    assert "has other files than the dataset here" in message


def test_names_follow_templates_that_the_server_accepts(hammer: RucioUser) -> None:
    write_dataset(hammer.datasets, "patterned", make_files())
    names = {
        "TREEHAMMER_RUCIO_DATASET_NAME": "set.{dataset}",
        "TREEHAMMER_RUCIO_FILE_NAME": "f-{dataset}-{file}",
    }
    hammer = RucioUser(hammer.grid, hammer.home, "hammer", **names)
    for setting, template in names.items():
        wrong = names | {setting: f"{template}~"}  # a character that the server's schema lacks
        user = RucioUser(hammer.grid, hammer.home, "hammer", **wrong)
        message = user.refused_message("place", "patterned", "--sites", "SITE_A", code=2)
        key = setting.removeprefix("TREEHAMMER_").lower()
        assert f"{key}: Rucio does not accept the name" in message
        with rucio_users.rucio_client(hammer.grid, "hammer") as client:
            dids = client.list_dids("hctest", {"name": "*patterned*"}, did_type="all")
            assert not list(dids)
    hammer.run_datasets("place", "patterned", "--sites", "SITE_A", "--upload-to", "SITE_C_DATA")
    assert {rule.expression[:6] for rule in hammer.own_rules("patterned")} == {"SITE_A", "SITE_C"}
    assert hammer.replica_states("patterned", where="site=SITE_A") == {"SITE_A": "good"}


def test_corrupted_replica_is_detected_and_repaired(hammer: RucioUser, placed: str) -> None:
    replica_files.corrupt_file(hammer.path_on_disk("SITE_B", f"{placed}.one.root"))
    words = ("verify", placed, "--sites", "site=SITE_B", "--full", "--declare")
    rows = {row["file"]: row for row in hammer.datasets_rows(*words, code=1)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "one.root": "corrupt",
        "two.root": "good",
    }
    assert rows["one.root"]["wrong_reads"] == 2
    assert rows["one.root"]["declared"] == "declared bad: Rucio replaces it"

    verify = ("verify", placed, "--sites", ALL, "--full")
    hammer.grid.wait_until(lambda: hammer.invoke_datasets(*verify)[0] == 0, "it is repaired", 120)
    with Store.open(hammer.settings.database) as store:
        assert store.mark_bad_replicas() == 0  # the findings are stored; no measurement is affected


@pytest.mark.parametrize(
    ("account", "sites", "remedy"),
    [
        ("guest", "SITE_A,SITE_B", "only an administrator"),
        ("hammer", "SITE_A", "it is the only replica: remove the dataset"),
    ],
)
def test_replica_that_rucio_cannot_replace_is_declared_suspicious(
    hammer: RucioUser, guest: RucioUser, account: str, sites: str, remedy: str
) -> None:
    name = f"suspicious-{account}"
    write_dataset(hammer.datasets, name, make_files(1000))
    hammer.run_datasets("place", name, "--sites", sites)
    replica_files.corrupt_file(hammer.path_on_disk("SITE_A", f"{name}.two.root"))
    words = ("verify", name, "--sites", "rse=SITE_A_DATA", "--full", "--declare")
    rows = {"guest": guest, "hammer": hammer}[account].datasets_rows(*words, code=1)
    (declared,) = [row["declared"] for row in rows if row["declared"]]
    assert declared.startswith(f"declared suspicious: {remedy}")


def test_replica_missing_on_storage_is_refused(hammer: RucioUser) -> None:
    write_dataset(hammer.datasets, "pretended-b", make_files(1000))
    hammer.run_datasets("place", "pretended-b", "--sites", "SITE_A,SITE_B")
    hammer.path_on_disk("SITE_B", "pretended-b.one.root").unlink()
    states = hammer.replica_states("pretended-b", where="site=SITE_A|site=SITE_B", code=1)
    assert states == {"SITE_A": "good", "SITE_B": "missing"}
    words = ("verify", "pretended-b", "--sites", "site=SITE_B", "--full", "--declare")
    assert not any(row["declared"] for row in hammer.datasets_rows(*words, code=1))


def test_dead_site_does_not_block_other_replicas(hammer: RucioUser) -> None:
    write_dataset(hammer.datasets, "not-at-b-b", make_files(1000))
    words = ("place", "not-at-b-b", "--sites", "all", "--timeout", "5s")
    with daemon_faults.stop_daemon(hammer.grid.box, hammer.grid.parts, "xrootd-SITE_B"):
        rows = {row["site"]: row for row in hammer.datasets_rows(*words, code=4)}
        assert {site: row["state"] for site, row in rows.items()} == {
            "SITE_A": "complete",
            "SITE_B": "stuck",
            "SITE_C": "complete",
        }
        assert "onnection" in rows["SITE_B"]["reason"]
        assert hammer.replica_states("not-at-b-b", code=1)["SITE_B"] != "good"
    hammer.datasets_rows("place", "not-at-b-b", "--sites", "all", "--timeout", "15m")
    assert hammer.replica_states("not-at-b-b") == dict.fromkeys(SITES, "good")


def test_tapes_and_storage_closed_for_writing_are_skipped(hammer: RucioUser) -> None:
    write_dataset(hammer.datasets, "blocked", make_files(1000))
    message = hammer.refused_message("place", "blocked", "--sites", "SITE_A_TAPE", code=2)
    assert "no storage on disk" in message
    with rucio_users.rucio_client(hammer.grid, "root") as admin:
        admin.update_rse("SITE_A_DATA", {"availability_write": False})
    try:
        rows = hammer.datasets_rows("place", "blocked", "--sites", "SITE_A,SITE_B", code=4)
    finally:
        with rucio_users.rucio_client(hammer.grid, "root") as admin:
            admin.update_rse("SITE_A_DATA", {"availability_write": True})
    assert {row["site"]: row["state"] for row in rows} == {"SITE_A": "denied", "SITE_B": "complete"}


def test_only_own_rules_are_withdrawn(hammer: RucioUser, guest: RucioUser, placed: str) -> None:
    with rucio_users.rucio_client(hammer.grid, "root") as admin:
        admin.add_replication_rule(
            [{"scope": "hctest", "name": placed}], 1, "SITE_A_DATA", lifetime=7200
        )
    rows = hammer.datasets_rows("remove", placed, "--sites", "SITE_A")
    assert [(row["rse"], row["state"]) for row in rows] == [("SITE_A_DATA", "withdrawn")]
    ends = {rule.expression: rule.expires_at or 0 for rule in hammer.own_rules(placed)}
    assert ends["SITE_A_DATA"] < time.time() + 7200 < ends["SITE_B_DATA"]
    with rucio_users.rucio_client(hammer.grid, "root") as admin:
        rules = list(admin.list_did_rules("hctest", placed))
    assert sum(rule["account"] == "root" for rule in rules) == 1
    assert "has no rule" in guest.refused_message("remove", placed, code=3)


def test_interrupted_place_is_resumed(hammer: RucioUser) -> None:
    write_dataset(hammer.datasets, "interrupted", make_files(10_000_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "treehammer", "datasets", "place", "interrupted", "--sites", "all"],
        env=os.environ | hammer.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with rucio_users.rucio_client(hammer.grid, "hammer") as client:
        filters = {"name": "interrupted"}
        hammer.grid.wait_until(
            lambda: list(client.list_dids("hctest", filters, did_type="all")), "it has begun"
        )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors
    rows = hammer.datasets_rows("place", "interrupted", "--sites", "all")
    assert {row["state"] for row in rows} == {"complete"}
    assert hammer.replica_states("interrupted", "--full") == dict.fromkeys(SITES, "good")


def test_each_account_has_a_separate_token(hammer: RucioUser, guest: RucioUser) -> None:
    shared = replace(guest.settings, cache_dir=hammer.settings.cache_dir)
    assert RucioCatalogue(hammer.settings).rucio.account == "hammer"
    assert RucioCatalogue(shared).rucio.account == "guest"
    tokens = list((hammer.settings.rucio_dir / "tokens").iterdir())
    assert len(tokens) == 2
    assert {path.stat().st_mode & 0o777 for path in tokens} == {0o600}
