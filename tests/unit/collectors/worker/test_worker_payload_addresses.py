"""Addresses that payloads open, by the software that opens them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.s3_signing import CREDENTIALS_VARIABLE
from treehammer.collectors.worker.run.payload_addresses import find_addresses

FILE = InputFile("f", "s3://h:9000/b/f.root", 1, "00000001")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "keys"
    path.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = secret\n")
    return {CREDENTIALS_VARIABLE: str(path)}


@pytest.mark.parametrize("provider", ["none", "pypi", "path", "cvmfs", "current"])
def test_address_is_signed_beyond_the_wall_limit(env: dict[str, str], provider: str) -> None:
    addresses = find_addresses([FILE], SoftwareRequest("x", provider, "6.38.00", ""), env, 3_000)
    (file,) = addresses.files
    assert file.url.startswith("http://h:9000/b/f.root?X-Amz-Algorithm=")
    assert int(parse_qs(urlsplit(file.url).query)["X-Amz-Expires"][0]) > 3_000
    assert addresses.are_signed
    assert "BEARER_TOKEN_FILE" in addresses.withheld
    assert "secret" not in file.url
    assert (file.size, file.adler32) == (FILE.size, FILE.adler32)


def test_wheel_signs_by_itself_or_reports_its_missing_class(env: dict[str, str]) -> None:
    def find(version: str, url: str = FILE.url) -> tuple[str, dict[str, str]]:
        software = SoftwareRequest(version, "wheel", version, "")
        file = InputFile("f", url, 1, "00000001")
        addresses = find_addresses([file], software, env, 0)
        assert not addresses.are_signed
        return addresses.files[0].url, dict(addresses.environment)

    keys = {"S3_ACCESS_KEY": "key", "S3_SECRET_KEY": "secret"}
    assert find("6.38.00") == ("s3http://h:9000/b/f.root", keys)
    assert find("6.40.00") == (FILE.url, {})
    assert find("6.38.00", "s3s://h/b/f.root")[0] == "s3s://h/b/f.root"


def test_other_doors_are_opened_as_they_are(env: dict[str, str]) -> None:
    for url in ("root://h//f", "https://h/f", "/data/f"):
        file = InputFile("f", url, 1, "00000001")
        addresses = find_addresses([file], SoftwareRequest("x", "pypi", "", ""), env, 60)
        assert addresses.files == (file,)
        assert (addresses.environment, addresses.withheld, addresses.are_signed) == ({}, (), False)


def test_unusable_keys_are_a_failure_of_credentials() -> None:
    env = {CREDENTIALS_VARIABLE: "/no/file"}
    with pytest.raises(ExecutionError, match="/no/file cannot be read") as caught:
        find_addresses([FILE], SoftwareRequest("x", "none", "", ""), env, 60)
    failure = caught.value.failure
    assert (failure.failure_class, failure.kind) == ("credential", "invalid")
