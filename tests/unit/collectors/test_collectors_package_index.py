"""ROOT releases on the package index, and wheels whose release is not known yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer.cli import cli
from treehammer.collectors import cli as releases_command
from treehammer.collectors import root_releases
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import setup_commands, wheels
from treehammer.collectors.software.providers import parse_software_request
from treehammer.collectors.software.wheels import expected_root_version, find_release
from treehammer.errors import ConfigError, SoftwareError

LISTING = """ROOT (0.1a13)
Available versions: 0.1a13, 0.1a12, 0.1a10
"""


def test_listing_names_releases_and_unknown_wheels() -> None:
    expected = ["wheel:0.1a13", "6.40.00", "6.38.00"]
    assert root_releases.parse_index_listing(LISTING) == expected
    assert root_releases.parse_index_listing("") == []


def test_index_that_does_not_answer_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        setup_commands.raise_setup_error("broken", "listing the wheels of ROOT failed: no route")

    monkeypatch.setattr(root_releases, "run_tool", fail)
    with pytest.raises(SoftwareError, match=r"no route\n  Check the network") as caught:
        root_releases.list_root_releases()
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


OFFERED = ["wheel:0.1a13", "6.40.00", "6.38.00", "6.39.01"]


def test_releases_are_described_by_cycle_and_state() -> None:
    described = root_releases.describe_releases(OFFERED, ["6.38.00", "wheel:0.1a7"])
    assert [(one.release, one.cycle, one.wheel) for one in described] == [
        ("wheel:0.1a13", "", "0.1a13"),
        ("wheel:0.1a7", "", "0.1a7"),
        ("6.40.00", "6.40", "0.1a12"),
        ("6.39.01", "6.39", "0.1a9"),
        ("6.38.00", "6.38", "0.1a10"),
    ]
    assert [one.release for one in described if one.is_cached] == ["wheel:0.1a7", "6.38.00"]
    assert [one.release for one in described if one.is_newest] == ["6.40.00", "6.39.01", "6.38.00"]


def test_older_patch_is_not_the_newest_of_its_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(wheels.WHEELS, "6.38.10", "0.1a20")
    newest = {
        one.release: one.is_newest
        for one in root_releases.describe_releases(["6.38.10"], ["6.38.00"])
    }
    assert newest == {"6.38.10": True, "6.38.00": False}


def test_command_lists_cached_releases_without_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> list[str]:
        raise SoftwareError("no route to the index")

    monkeypatch.setattr(releases_command, "list_root_releases", fail)
    monkeypatch.setattr(releases_command, "list_cached_releases", lambda _: ["6.38.00"])
    result = CliRunner().invoke(
        cli, ["--cache-dir", str(tmp_path), "--data-dir", str(tmp_path), "releases", "--json"]
    )
    assert result.stderr == "Only cached releases are listed: no route to the index\n"
    assert json.loads(result.stdout) == [
        {
            "release": "6.38.00",
            "cycle": "6.38",
            "wheel": "0.1a10",
            "is_cached": True,
            "is_newest": None,
        }
    ]


def test_wheel_that_the_index_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(root_releases, "list_root_releases", lambda: OFFERED)

    def check(text: str) -> None:
        root_releases.check_unknown_wheels(
            [parse_software_request(text)], tmp_path, where="-P root"
        )

    for offered in ("wheel:0.1a13", "wheel:0.1a12", "6.37.01", "current"):
        check(offered)
    with pytest.raises(ConfigError, match=r"no wheel 0\.1a14 of ROOT\n.*mean 'wheel:0\.1a1[0-9]'"):
        check("wheel:0.1a14")


def test_unknown_wheel_is_left_to_pip_without_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> list[str]:
        raise SoftwareError("no route")

    monkeypatch.setattr(root_releases, "list_root_releases", fail)
    root_releases.check_unknown_wheels(
        [parse_software_request("wheel:0.1a14")], tmp_path, where="-P root"
    )
