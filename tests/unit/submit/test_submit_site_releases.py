"""ROOT releases at sites: one test.toml runs locally and on the grid."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_factory import READING_TEST, make_grid_plan, make_grid_site, make_site

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.software.providers import parse_software_request
from treehammer.errors import ConfigError
from treehammer.submit.campaigns.campaign_request import resolve_site_software


def _at(text: str, **mapping: str) -> SoftwareRequest:
    place = make_grid_site(software=mapping)
    return resolve_site_software([place], {text: parse_software_request(text)})["SITE_A", text]


def test_release_resolves_to_site_software() -> None:
    found = _at("6.40.00", **{"*": "cvmfs:ROOT/{version}/x86_64-el9-gcc13-opt"})
    assert (found.provider, found.version) == ("cvmfs", "6.40.00")
    assert found.location.endswith("ROOT/6.40.00/x86_64-el9-gcc13-opt")


def test_exact_release_precedes_wildcard() -> None:
    mapping = {"6.40.00": "cvmfs:LCG_109/x86_64-el9-gcc13-opt", "*": "cvmfs:ROOT/{version}/P"}
    assert "LCG_109" in _at("6.40.00", **mapping).location
    assert _at("6.40.00", **mapping).version == "6.40.00", "the requested version is reported"
    assert "LCG_109" in _at("wheel:6.40.00", **mapping).location


@pytest.mark.parametrize("text", ["none", "current", "cvmfs:LCG_106/P", "path:/opt/root"])
def test_explicit_location_is_unchanged(text: str) -> None:
    assert _at(text, **{"*": "cvmfs:ROOT/{version}/P"}) == parse_software_request(text)


@pytest.mark.parametrize("mapping", [{}, {"6.38.00": "cvmfs:ROOT/6.38.00/P"}, {"*": "{version}"}])
def test_missing_site_software_is_refused(mapping: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        _at("6.40.00", **mapping)
    assert "site SITE_A does not define its installation of ROOT 6.40.00" in str(caught.value)
    assert "Grid jobs never download software" in str(caught.value)


def test_xrootd_client_is_the_site_s_own() -> None:
    found = _at("xrootd:6.2.1", xrootd="xrootd:/cvmfs/site/client-{version}")
    assert (found.provider, found.location) == ("xrootd", "/cvmfs/site/client-6.2.1")
    assert _at("xrootd:6.2.1", **{"xrootd:6.2.1": "cvmfs:LCG_106/P"}).version == ""
    with pytest.raises(ConfigError, match=r"installation of XRootD 6\.2\.1") as caught:
        _at("xrootd:6.2.1", **{"*": "cvmfs:ROOT/{version}/P", "xrootd": "xrootd:{version}"})
    assert '"xrootd" = "xrootd:/FOLDER"' in str(caught.value)


@pytest.mark.parametrize("word, said", [("cvfms:x", "cvmfs"), ("cvmfs:ROOT/6.38.00/P", "6.38.00")])
def test_invalid_site_software_is_refused(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"site SITE_A: software.*{said}"):
        _at("6.40.00", **{"*": word})


def test_identity_has_requested_release(tmp_path: Path) -> None:
    made = make_grid_plan(tmp_path, READING_TEST, make_site(), make_grid_site())
    for job in made.jobs:
        for execution in job.spec.executions:
            provider = "wheel" if job.site.name == "local" else "cvmfs"
            assert execution.software.provider == provider
            assert execution.identity["axis_root"] in ("6.38.00", "6.40.00")
            assert execution.identity["axis_root"] == execution.software.version
