"""Verification of replicas at folders and a web server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from byte_datasets import write_dataset
from click.testing import CliRunner, Result
from local_servers import serve_http

from treehammer import config
from treehammer.cli import cli
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import MISSING, NO_RESPONSE, NOT_TRIED, FileObservation
from treehammer.datasets.manifest import Manifest
from treehammer.errors import ConfigError
from treehammer.sql.write.store import Store
from treehammer.submit.cli.datasets_commands import record_findings
from treehammer.submit.sites.replica_selection import list_expected_replicas, select_storage
from treehammer.submit.sites.replicas import (
    CORRUPT_STATE,
    GOOD_STATE,
    SIZE_ONLY_STATE,
    ExpectedReplica,
    ReplicaCheck,
    check_replicas,
)

CONTENT = {"one.root": os.urandom(100_000), "two.root": b"two"}
SITES = """
[sites.NEAR]
[[sites.NEAR.doors]]
name = "file"
protocol = "file"
prefix = "{folder}"
[[sites.NEAR.doors]]
name = "http"
protocol = "http"
prefix = "http://127.0.0.1:{port}"
[pools.far]
[sites.FAR]
pool = "far"
[[sites.FAR.doors]]
name = "file"
protocol = "file"
prefix = "/nowhere/at/all"
"""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Storage of a site with a replica of the dataset ``made``."""
    write_dataset(tmp_path / "storage", "made", CONTENT)
    return tmp_path / "storage"


@pytest.fixture
def manifest(tmp_path: Path, storage: Path) -> Manifest:
    return Manifest.read(storage / "made")


@pytest.fixture
def settings(tmp_path: Path, storage: Path, manifest: Manifest) -> Iterator[config.Settings]:
    here = tmp_path / "cache" / "datasets" / "made"
    here.mkdir(parents=True)
    (here / "manifest.json").write_text(manifest.to_json())
    with serve_http(folder=storage) as port:
        (tmp_path / "sites.toml").write_text(SITES.format(folder=storage, port=port))
        flags = {name: tmp_path / name[:-4] for name in ("cache_dir", "data_dir")}
        yield config.load_settings({**flags, "sites_file": tmp_path / "sites.toml"}, environ={})


def at(
    settings: config.Settings, manifest: Manifest, site: str, *names: str
) -> list[ExpectedReplica]:
    return list_expected_replicas(manifest, select_storage(site, settings, None), names, None)


def states(checks: list[ReplicaCheck]) -> list[str]:
    return [check.state for check in checks]


@pytest.mark.parametrize("door", ["file", "http"])
def test_full_read_proves_good_replica(
    settings: config.Settings, manifest: Manifest, door: str
) -> None:
    expected = at(settings, manifest, "NEAR", door)
    assert states(check_replicas(manifest, expected)) == [SIZE_ONLY_STATE, SIZE_ONLY_STATE]
    checks = check_replicas(manifest, expected, full=True)
    assert states(checks) == [GOOD_STATE, GOOD_STATE]
    assert all(check.is_proof for check in checks)


@pytest.mark.parametrize("door", ["file", "http"])
def test_two_wrong_reads_prove_a_corrupt_replica(
    settings: config.Settings, manifest: Manifest, storage: Path, door: str
) -> None:
    path = storage / "made" / "one.root"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    wanted = at(settings, manifest, "NEAR", door)
    assert states(check_replicas(manifest, wanted)) == [SIZE_ONLY_STATE, SIZE_ONLY_STATE]
    bad, good = check_replicas(manifest, wanted, full=True)
    assert (bad.state, bad.wrong_reads, bad.is_proof, good.state) == (
        CORRUPT_STATE,
        2,
        True,
        GOOD_STATE,
    )
    assert "instead of" in bad.message


def test_wrong_size_is_corrupt_without_reading(
    settings: config.Settings, manifest: Manifest, storage: Path
) -> None:
    (storage / "made" / "one.root").write_bytes(b"short")
    (storage / "made" / "two.root").unlink()
    for door in ("file", "http"):
        checks = check_replicas(manifest, at(settings, manifest, "NEAR", door))
        assert states(checks) == [CORRUPT_STATE, MISSING]
        assert checks[0].message == "5 bytes instead of 100000"


def test_single_wrong_read_is_not_proof(
    settings: config.Settings, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = manifest.files[0]
    other = FileObservation(file.size, "00000001", "0" * 64)
    right = FileObservation(file.size, file.adler32, file.sha256)
    silent = FileObservation(failure=NO_RESPONSE, message="no answer")
    place = ExpectedReplica("NEAR", "file", file, "/x")
    for reads, proof in (([other, other], True), ([other, right], False), ([other, silent], False)):
        remaining = iter(reads)
        monkeypatch.setattr(doors, "read_file", lambda *_, reads=remaining, **__: next(reads))
        (checks,) = check_replicas(manifest, [place], full=True)
        assert (checks.state, checks.is_proof) == (CORRUPT_STATE, proof)
    monkeypatch.setattr(doors, "read_file", lambda *_, **__: silent)
    (checks,) = check_replicas(manifest, [place], full=True)
    assert (checks.state, checks.is_proof) == (NO_RESPONSE, False)


def test_remote_folders_are_not_tried(settings: config.Settings, manifest: Manifest) -> None:
    assert states(check_replicas(manifest, at(settings, manifest, "FAR"))) == [NOT_TRIED, NOT_TRIED]


def test_unknown_door_is_refused(settings: config.Settings, manifest: Manifest) -> None:
    with pytest.raises(ConfigError, match="no site has a door https"):
        at(settings, manifest, "all", "https")


def test_rse_expression_needs_rucio(settings: config.Settings) -> None:
    with pytest.raises(ConfigError, match="Rucio is not configured"):
        select_storage("tier=2", settings, None)


def test_only_proofs_are_recorded(settings: config.Settings, manifest: Manifest) -> None:
    wanted = at(settings, manifest, "NEAR", "file")
    assert record_findings(manifest, check_replicas(manifest, wanted), settings) == 0
    assert not (settings.data_dir / "results.db").exists()
    checks = check_replicas(manifest, wanted, full=True)
    bad = replace(checks[0], state=CORRUPT_STATE, wrong_reads=2, message="other")
    assert record_findings(manifest, [bad, checks[1]], settings) == 0
    with Store.open(settings.database) as store:
        assert store.mark_bad_replicas() == 0  # there are no measurements


def run(settings: config.Settings, *words: str, alone: bool = False) -> Result:
    return CliRunner().invoke(cli, [*flags(settings), "datasets", *words], standalone_mode=alone)


def flags(settings: config.Settings) -> list[str]:
    return [
        f"--cache-dir={settings.cache_dir}",
        f"--data-dir={settings.data_dir}",
        f"--sites-file={settings.sites_file}",
    ]


def test_verify_exits_with_1_for_missing_file(
    settings: config.Settings, storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUCIO_CONFIG", raising=False)
    monkeypatch.delenv("TREEHAMMER_RUCIO_CONFIG", raising=False)
    done = run(settings, "verify", "made", "--sites", "NEAR", "--full")
    assert "made     NEAR  file  good   2 of 2" in done.output
    (storage / "made" / "two.root").unlink()
    done = run(settings, "verify", "made", "--sites", "NEAR", "--full", "--door", "file")
    assert "missing  1 of 2  two.root: No such file" in done.output
    assert done.return_value == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("made", "--sites", "NEAR", "--declare"), "--declare needs --full"),
        (("made", "--full"), "need --sites"),
        (("--sites", "NEAR"), "needs the NAME"),
    ],
)
def test_invalid_verify_options_are_refused(
    settings: config.Settings, words: tuple[str, ...], problem: str
) -> None:
    done = run(settings, "verify", *words, alone=True)
    assert done.exit_code == 2
    assert problem in done.output


def test_interrupt_stops_reading(
    settings: config.Settings, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> FileObservation:
        raise KeyboardInterrupt

    monkeypatch.setattr(doors, "read_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_replicas(manifest, at(settings, manifest, "NEAR", "file"), full=True)
