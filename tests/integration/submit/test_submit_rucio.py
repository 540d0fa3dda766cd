"""Campaigns on data placed by a real Rucio."""

from __future__ import annotations

import os
from pathlib import Path

import replica_files
from rucio_users import RucioUser, hammer, restored
from tiny_dataset import write_dataset

from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

__all__ = ["hammer", "restored"]

SITES = ("SITE_A", "SITE_B", "SITE_C")
TEST = """
[test]
name = "shell"
payload = "run.sh"
dataset = "{dataset}"
repeats = 1
rounds = 1
wall_limit_s = 60
memory_limit_mb = 100
[matrix]
root = ["none"]
door = ["rucio"]
"""
RESULT = '{"format": 1, "values": {}, "extras": {}, "failure": null}'


def shell_test(folder: Path, dataset: str) -> str:
    (folder / "test.toml").write_text(TEST.format(dataset=dataset))
    (folder / "run.sh").write_text(f"#!/bin/sh\necho '{RESULT}' > \"$TREEHAMMER_RESULT\"\n")
    (folder / "run.sh").chmod(0o755)
    return str(folder)


def test_sites_without_good_replica_are_skipped(hammer: RucioUser, tmp_path: Path) -> None:
    """Skip sites without replica, with a missing file, and with a file of wrong size.

    Another machine of the user plans with the manifest in Rucio alone.
    """
    manifest = write_dataset(hammer.datasets, "planned", {"one.root": os.urandom(5000)})
    spec = shell_test(tmp_path, "planned")
    hammer.run_datasets("place", "planned", "--sites", "SITE_A")
    code, printed, messages = hammer.invoke_command(
        "submit", spec, "--sites", "all", "--dry-run", "--json"
    )
    assert code == 0, messages
    assert "Door rucio of site SITE_B is skipped" in messages + printed
    assert "one.root: Rucio has no replica at SITE_B_DATA for root" in messages + printed

    hammer.run_datasets("place", "planned", "--sites", "all")
    elsewhere = RucioUser(hammer.grid, tmp_path / "elsewhere", "hammer")
    code, printed, messages = elsewhere.invoke_command("render", spec, "--sites", "all", "--full")
    assert code == 0, messages
    assert not elsewhere.datasets.exists()
    assert "//store/rucio/hctest/" in printed
    assert "/planned.one.root" in printed
    for site in SITES:
        assert f"{site} is skipped" not in messages + printed
    hammer.path_on_disk("SITE_B", "planned.one.root").unlink()
    hammer.path_on_disk("SITE_C", "planned.one.root").write_bytes(b"short")
    code, printed, messages = hammer.invoke_command(
        "submit", spec, "--sites", "all", "--dry-run", "--json"
    )
    output = messages + printed
    assert "SITE_A is skipped" not in output
    assert "SITE_B is skipped" in output
    assert "missing" in output
    assert "SITE_C is skipped" in output
    assert f"5 bytes instead of {manifest.size}" in output
    code, printed, messages = hammer.invoke_command(
        "submit", spec, "--sites", "SITE_B,SITE_C", "--dry-run"
    )
    assert code == 3
    assert "SITE_B is skipped" in messages


def test_measurements_of_bad_replica_do_not_count(hammer: RucioUser, tmp_path: Path) -> None:
    write_dataset(hammer.datasets, "counted", {"one.root": os.urandom(5000)})
    hammer.run_datasets("place", "counted", "--sites", "SITE_A,SITE_B")
    spec = shell_test(tmp_path, "counted")
    submit = ("submit", spec, "--sites", "SITE_A,SITE_B", "--wait")
    assert hammer.invoke_command(*submit)[0] == 0
    replica_files.corrupt_file(hammer.path_on_disk("SITE_B", "counted.one.root"))
    verify = ("verify", "counted", "--sites", "SITE_A,SITE_B", "--door", "rucio", "--full")
    code, printed, messages = hammer.invoke_datasets(*verify, "--declare")
    assert code == 1
    assert "1 measurement" in printed + messages
    assert plausible(hammer) == {"SITE_A": [True], "SITE_B": [False]}
    # Rucio replaces the replica; later measurements count.
    hammer.grid.wait_until(
        lambda: hammer.invoke_datasets(*verify)[0] == 0, "the replica is repaired", 120
    )
    assert hammer.invoke_command(*submit)[0] == 0
    assert plausible(hammer) == {"SITE_A": [True, True], "SITE_B": [False, True]}


def plausible(hammer: RucioUser) -> dict[str, list[bool]]:
    """Return site -> plausibility of its measurements, in the order of their start."""
    columns = ("site", "started_us", "plausible")
    by_site: dict[str, list[bool]] = {}
    with Store.open(hammer.settings.database) as store:
        rows = sorted(store.measurements(Selection(), columns), key=lambda r: r["started_us"] or 0)
    for row in rows:
        by_site.setdefault(str(row["site"]), []).append(bool(row["plausible"]))
    return by_site
