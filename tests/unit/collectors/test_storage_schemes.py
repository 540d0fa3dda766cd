"""The table of storage schemes and of the software that supports them."""

from __future__ import annotations

import pytest

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.storage_access import (
    HTTP_CLIENT,
    READ,
    STAGE,
    XROOTD_CLIENT,
    describe_read_limits,
    find_limit,
    find_scheme,
    list_aliases,
    normalize_url,
)

WHEEL_638, WHEEL_640 = map(parse_software_request, ("6.38.00", "6.40.00"))


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("davs://se.example:443/a", "https://se.example:443/a"),
        ("dav://se.example/a", "http://se.example/a"),
        ("xroot://se.example//a", "root://se.example//a"),
        ("xroots://se.example//a", "roots://se.example//a"),
        ("roots://se.example//a", "roots://se.example//a"),
        ("file:///data/a", "/data/a"),
        ("/data/a", "/data/a"),
        ("gsiftp://se.example/a", "gsiftp://se.example/a"),
    ],
)
def test_aliases_are_replaced(url: str, normal: str) -> None:
    assert normalize_url(url) == normal


def test_every_alias_has_a_client_and_a_port() -> None:
    assert list_aliases("root") == ("root", "xroot", "roots", "xroots")
    for protocol, client in (("root", XROOTD_CLIENT), ("https", HTTP_CLIENT)):
        for alias in list_aliases(protocol):
            scheme = find_scheme(f"{alias}://se.example//a")
            assert scheme is not None
            assert (scheme.client, scheme.port > 0) == (client, True)
    assert find_scheme("s3://bucket/a") is None


@pytest.mark.parametrize(
    ("software", "url", "has_credential", "limited"),
    [
        (WHEEL_638, "roots://se.example//a", True, False),
        (WHEEL_640, "roots://se.example//a", True, False),
        (WHEEL_638, "http://se.example/a", False, False),
        (WHEEL_640, "http://se.example/a", False, True),
        (WHEEL_638, "https://se.example/a", False, False),
        (WHEEL_638, "https://se.example/a", True, True),
        (WHEEL_638, "davs://se.example/a", True, True),
        (parse_software_request("path:/opt/root"), "https://se.example/a", True, False),
    ],
)
def test_direct_reading_depends_on_release_and_scheme(
    software: SoftwareRequest, url: str, has_credential: bool, limited: bool
) -> None:
    reason = find_limit(READ, url, software, has_credential=has_credential)
    assert bool(reason) == limited
    assert not limited or "Stage the files" in reason


def test_staging_by_xrootd_needs_root() -> None:
    none = parse_software_request("none")
    assert "http:// or https://" in find_limit(STAGE, "roots://a//b", none, has_credential=True)
    assert not find_limit(STAGE, "https://a/b", none, has_credential=True)
    assert not find_limit(STAGE, "roots://a//b", WHEEL_640, has_credential=True)


def test_limits_of_a_door_name_all_releases() -> None:
    assert not describe_read_limits("roots://se.example//a")
    assert "6.38" in describe_read_limits("https://se.example/a")
    assert "6.40: no class" in describe_read_limits("http://se.example/a")
