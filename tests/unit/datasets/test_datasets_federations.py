"""Doors of Pelican federations, against a small server that is federation, director and cache."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_servers import make_authority, serve_http
from pelican_federation import CONTENT, Federation

from treehammer.collectors import pelican_director
from treehammer.collectors.http_requests import HttpAnswerError
from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.pelican_director import locate_object
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.storage_access import normalize_url
from treehammer.collectors.worker.run.payload_addresses import find_addresses
from treehammer.datasets import doors
from treehammer.datasets.doors import FileObservation, ProbeTarget
from treehammer.datasets.doors.observations import MISSING
from treehammer.submit.sites.site_model import Door, find_prefix_error


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of the federation, which this process trusts."""
    certificate = make_authority(tmp_path)
    monkeypatch.setenv("X509_CERT_DIR", str(tmp_path))
    monkeypatch.setattr(Federation, "asked", [])
    pelican_director._find_director.cache_clear()
    with serve_http(Federation, certificate=certificate) as port:
        yield f"pelican://127.0.0.1:{port}"


def test_object_is_read_at_the_cache_that_the_director_names(
    federation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "token"))
    url = f"{federation}/vo/file"
    assert doors.stat_file(url) == FileObservation(len(CONTENT))
    read = doors.read_file(url, len(CONTENT), copy_to=tmp_path / "copy")
    assert read.adler32 == f"{zlib.adler32(CONTENT):08x}"
    assert (tmp_path / "copy").read_bytes() == CONTENT
    probe = doors.probe_door(f"{federation}/vo", ProbeTarget("file", len(CONTENT)), is_local=False)
    assert probe.problem == ""
    assert doors.stat_file(f"{federation}/other/file").failure == MISSING
    assert doors.write_file(tmp_path / "copy", url).message.startswith("federations are only read")
    assert doors.remove_file(url).failure
    # The token goes to caches alone; the director is asked with GET, and for its address once.
    tokens = {token for _, path, token in Federation.asked if path.startswith("/cache")}
    assert tokens == {"Bearer secret"}
    requests = [entry for entry in Federation.asked if not entry[1].startswith("/cache")]
    assert {(method, token) for method, _, token in requests} == {("GET", None)}
    assert [path for _, path, _ in requests].count("/.well-known/pelican-configuration") == 1


def test_payload_opens_the_cache_and_failures_name_the_director(federation: str) -> None:
    software = SoftwareRequest("none", "none", "", "")
    env = {"X509_CERT_DIR": os.environ["X509_CERT_DIR"]}

    def find(path: str) -> str:
        file = InputFile("f", f"{federation}{path}", 1, "00000001")
        return find_addresses([file], software, env, 60).files[0].url

    caches = {f"https{federation.removeprefix('pelican')}/cache{number}/vo/file" for number in "12"}
    addresses = {find("/vo/file") for _ in range(3)}
    # All executions of a job read at one cache, whatever the director names meanwhile.
    assert len(addresses) == 1
    assert addresses < caches
    with pytest.raises(ExecutionError, match=r"its director name no cache: .* 404") as caught:
        find("/other/file")
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind, failure.transient) == ("open", "missing", False)


def test_answers_against_the_rules_are_refused(
    federation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"X509_CERT_DIR": os.environ["X509_CERT_DIR"]}
    monkeypatch.setattr(Federation, "is_cache_plain", True)
    with pytest.raises(HttpAnswerError, match="which is no https URL"):
        locate_object(f"{federation}/vo/file", env)
    pelican_director._find_director.cache_clear()
    monkeypatch.setattr(Federation, "endpoint", "http://127.0.0.1")
    with pytest.raises(HttpAnswerError, match="names no director_endpoint"):
        locate_object(f"{federation}/vo/file", env)


def test_osdf_urls_name_their_federation() -> None:
    for url in ("osdf:///ospool/file", "osdf://ospool/file"):
        assert normalize_url(url) == "pelican://osg-htc.org/ospool/file"
    door = Door(name="osdf", protocol="pelican", prefix="osdf:///ospool/data/")
    assert door.prefix == "pelican://osg-htc.org/ospool/data"
    assert find_prefix_error("pelican", "pelican:///ospool") != ""
