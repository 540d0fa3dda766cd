"""Probes, verification and writing through doors with TLS, tokens and proxies."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import cast

import pytest
from grid_fixtures import SITE, SecureDoors

from treehammer import config
from treehammer.datasets import doors
from treehammer.datasets.doors import ProbeTarget
from treehammer.datasets.manifest import RAW_LAYOUT, ManifestFile
from treehammer.datasets.rucio import rucio_upload
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import DidFile
from treehammer.submit.sites.replicas import ExpectedReplica, check_by_stat
from treehammer.submit.sites.site_model import Site
from treehammer.submit.sites.site_probes import probe_credentials, probe_sites
from treehammer.testbed.components.secure_storage import (
    DOOR_NAMES,
    MEMBER,
    READ_SCOPE,
    RESTRICTED_FOLDER,
    STRANGER,
    WRITE_SCOPE,
    WRITER,
    user_proxy,
)

CONTENT = b"seven b" * 1000
ADLER32 = f"{zlib.adler32(CONTENT):08x}"
TOKEN_DOORS = ("roots", "https")


@pytest.fixture(autouse=True)
def _user(secure: SecureDoors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trust the testbed's authority, and hold a read token and a member's proxy."""
    secure.put_file("set/data.bin", CONTENT)
    for name in ("BEARER_TOKEN", "BEARER_TOKEN_FILE", "X509_USER_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in secure.environment(secure.write_token(tmp_path / "token")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("X509_USER_PROXY", str(user_proxy(secure.part.box, MEMBER)))


def test_every_door_is_ok_for_check_and_verification(secure: SecureDoors) -> None:
    site = Site(name=SITE, batch="local", doors=tuple(secure.doors.values()))
    target = ProbeTarget("set/data.bin", len(CONTENT))
    results = probe_sites([site], target, config.load_settings())
    assert {(probe.check, probe.result) for probe in results} == {
        (f"door {name}", "ok") for name in DOOR_NAMES
    }
    remedies = {probe.check: probe.remedy for probe in results}
    assert not remedies["door roots"]
    assert "Stage the files" in remedies["door https"]
    file = ManifestFile("data.bin", len(CONTENT), ADLER32, "0" * 64, RAW_LAYOUT)
    for door in site.doors:
        url = door.file_url("set", "data.bin")
        assert check_by_stat(ExpectedReplica(SITE, door.name, file, url)).is_good, url
        observation = doors.read_file(url, len(CONTENT))
        assert (observation.size, observation.adler32) == (len(CONTENT), ADLER32)
    url = secure.doors["https"].file_url("set", "data.bin").replace("https://", "davs://")
    assert doors.stat_file(url).adler32 == ADLER32


@pytest.mark.parametrize("door", TOKEN_DOORS)
@pytest.mark.parametrize(
    ("scope", "lifetime_s"), [("storage.read:/other", 900.0), (READ_SCOPE, -60.0)]
)
def test_refused_token_is_reported_with_a_remedy(
    secure: SecureDoors, tmp_path: Path, door: str, scope: str, lifetime_s: float
) -> None:
    secure.write_token(tmp_path / "token", scope, lifetime_s)
    url = secure.doors[door].file_url("set", "data.bin")
    assert doors.stat_file(url).failure == "refused"
    chosen = secure.doors[door]
    probe = doors.probe_door(chosen.prefix, ProbeTarget("set/data.bin", 1), is_local=True)
    assert "BEARER_TOKEN_FILE" in probe.remedy


@pytest.mark.parametrize("door", TOKEN_DOORS)
def test_writing_needs_its_scope(secure: SecureDoors, tmp_path: Path, door: str) -> None:
    url = secure.doors[door].file_url("set", f"new-{door}.bin")
    assert doors.probe_writing(url).failure == "refused"
    secure.write_token(tmp_path / "token", WRITE_SCOPE)
    source = tmp_path / "new.bin"
    source.write_bytes(CONTENT)
    written = doors.write_file(source, url)
    assert (written.size, written.failure) == (len(CONTENT), ""), written.message
    assert doors.stat_file(url).adler32 == ADLER32
    assert not doors.remove_file(url).failure


@pytest.mark.parametrize(("door", "scheme"), [("roots", "roots"), ("https", "davs")])
def test_placement_writes_through_what_an_rse_offers(
    secure: SecureDoors, tmp_path: Path, door: str, scheme: str
) -> None:
    """Upload with a scripted Rucio, whose storage has neither ``root://`` nor ``https://``."""
    url = secure.doors[door].file_url("set", f"placed-by-{door}.bin")
    registered = []

    class Rucio:
        def find_upload_urls(self, rse: str, names: list[str], asked: str) -> list[str]:
            return [f"{scheme}{url[url.index(':') :]}"] if asked == scheme else []

        def register_replicas(self, rse: str, files: list[DidFile]) -> None:
            registered.append((rse, *files))

    secure.write_token(tmp_path / "token", WRITE_SCOPE)
    source = tmp_path / "new.bin"
    source.write_bytes(CONTENT)
    file = DidFile("set.new.bin", len(CONTENT), ADLER32)
    sent: list[int] = []
    rucio = cast(RucioClient, Rucio())
    rucio_upload._upload_batch([(file, source)], 1, "A_DATA", rucio, sent.append)
    assert registered == [("A_DATA", file)]
    assert sum(sent) == len(CONTENT)
    assert doors.stat_file(url).adler32 == ADLER32


@pytest.mark.parametrize("name", ["voms", "voms-https"])
@pytest.mark.parametrize(
    ("holder", "failures"),
    [(MEMBER, ("", "refused", "refused")), (WRITER, ("", "", "")), (STRANGER, ("refused",) * 3)],
)
def test_voms_attributes_decide_about_reading_and_writing(
    secure: SecureDoors,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    holder: str,
    failures: tuple[str, ...],
) -> None:
    secure.put_file(f"{RESTRICTED_FOLDER}/data.bin", CONTENT)
    monkeypatch.setenv("X509_USER_PROXY", str(user_proxy(secure.part.box, holder)))
    monkeypatch.delenv("BEARER_TOKEN_FILE")
    door, source = secure.doors[name], tmp_path / "source"
    source.write_bytes(CONTENT)
    observations = (
        doors.stat_file(door.file_url("set", "data.bin")),
        doors.stat_file(door.file_url(RESTRICTED_FOLDER, "data.bin")),
        doors.write_file(source, door.file_url("set", f"written-by-{holder}-at-{name}")),
    )
    assert tuple(observation.failure for observation in observations) == failures


def test_check_reports_the_proxy(secure: SecureDoors, tmp_path: Path) -> None:
    path = secure.write_voms_proxy(tmp_path / "proxy", "/testers", "/testers/calibration")
    site = Site(name=SITE, batch="local", doors=(), submit={"x509userproxy": str(path)})
    (probe,) = probe_credentials([site], {})
    assert (probe.site, probe.result) == (SITE, "ok")
    assert "VO testers (/testers, /testers/calibration), valid until" in probe.finding
    assert probe.finding.startswith("/CN=alice, ")
