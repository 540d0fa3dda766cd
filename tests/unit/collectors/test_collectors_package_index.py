"""ROOT releases on the package index, and wheels whose release is not known yet."""

from __future__ import annotations

import pytest

from treehammer.collectors import package_index
from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import provider_tools
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.software.wheel_releases import (
    expected_root_version,
    find_release,
)
from treehammer.errors import SoftwareError

LISTING = """ROOT (0.1a13)
Available versions: 0.1a13, 0.1a12, 0.1a10
"""


def test_listing_names_releases_and_unknown_wheels() -> None:
    expected = ["wheel:0.1a13", "6.40.00", "6.38.00"]
    assert package_index.parse_index_listing(LISTING) == expected
    assert package_index.parse_index_listing("") == []


def test_index_that_does_not_answer_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        provider_tools.raise_setup_error("broken", "listing the wheels of ROOT failed: no route")

    monkeypatch.setattr(package_index, "run_tool", fail)
    with pytest.raises(SoftwareError, match=r"no route\n  Check the network") as caught:
        package_index.list_root_releases()
    assert isinstance(caught.value.__cause__, ExecutionError)


@pytest.mark.parametrize("wheel", ["0.1a13", "6.42.0", "6.42.0rc1"])
def test_unknown_wheel_is_requested_by_its_package_version(wheel: str) -> None:
    request = parse_software_request(f"wheel:{wheel}")
    release = find_release(request)
    assert (release.wheel, release.sha256, release.expected_version) == (wheel, "", "")
    assert expected_root_version(request) == ""


def test_known_release_must_report_its_version() -> None:
    request = parse_software_request("wheel:6.40.00")
    assert expected_root_version(request) == find_release(request).expected_version == "6.40.00"
    for text in ("wheel:6.41.00", "0.1a13", "wheel:new"):
        with pytest.raises(ValueError, match=r"no wheel of ROOT|names no ROOT"):
            parse_software_request(text)
