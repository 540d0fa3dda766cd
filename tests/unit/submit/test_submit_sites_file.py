"""sites.toml: parsing, errors and writing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from treehammer import submit
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.errors import SitesError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.sites import site_model, sites_file
from treehammer.submit.sites.site_model import (
    Ceilings,
    Door,
    DoorCache,
    Site,
    SitesDocument,
    token_pool_environment,
)

PUBLISHED = Path(submit.__file__).parent / "sites" / "sites.schema.json"

EVERYTHING = r"""
[pools.testbed]
config = "condor_config"
collector = "127.0.0.1:9618"
schedd = "schedd@host"
token_dir = "~/tokens"
submit_dir = "/submit"
[pools.default]
[sites.SITE_A]
pool = "testbed"
requirements = 'TARGET.GLIDEIN_Site == "SITE_A"'
storage = "XRootD"
cvmfs = "/path/cvmfs"
python = "/usr/bin/python3.9"
python_views = ["LCG_106/x86_64-el9-gcc13-opt"]
labels = ["near"]
software = { "*" = "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt" }
submit = { accounting_group = "group_io", request_gpus = 1, "+WantX" = true }
environment = { https_proxy = "http://squid.example.org:3128" }
templates = "templates"
ceilings = { jobs = 1000, in_flight = 50, bytes_per_day = "10 TB", mb_per_s = 100 }
[[sites.SITE_A.doors]]
name = "root"
protocol = "root"
prefix = "root://127.0.0.1:1094//store/treehammer/"
middleware = "XRootD"
version = "5.8.1"
[[sites.SITE_A.doors]]
name = "https"
protocol = "https"
prefix = "https://127.0.0.1:1095/store"
token_pools = ["pool*.example.org", "[::1]:1"]
[[sites.SITE_A.doors]]
name = "rucio"
protocol = "root"
rse = "A_DISK"
cache = {}
[[sites.SITE_A.doors]]
name = "pinned"
protocol = "root"
rse = "A_DISK"
prefix = "root://r//store/A/"
cache = { evict = "rm -f /c{path}", files = "/c", monitor = "[::1]:9931" }
[sites.DESK]
doors = [{ name = "file", protocol = "file", prefix = "data" }]
[sites.HPC]
doors = [{ name = "file", protocol = "file", prefix = '/a "b" \ü' }]
"""


def read(folder: Path, text: str) -> SitesDocument:
    path = folder / "sites.toml"
    path.write_text(text, encoding="utf-8")
    return sites_file.read_sites_file(path)


def test_complete_file_is_parsed_and_written(tmp_path: Path) -> None:
    sites = read(tmp_path, EVERYTHING)
    assert sites.pools["testbed"] == HTCondorPool(
        name="testbed",
        config=tmp_path / "condor_config",
        collector="127.0.0.1:9618",
        schedd="schedd@host",
        token_dir=Path.home() / "tokens",
        submit_dir=Path("/submit"),
    )
    assert sites.pools["default"] == HTCondorPool(name="default")
    assert sites.sites["SITE_A"] == Site(
        name="SITE_A",
        batch="htcondor@testbed",
        doors=(
            Door(
                name="root",
                protocol="root",
                prefix="root://127.0.0.1:1094//store/treehammer",
                middleware="XRootD",
                version="5.8.1",
            ),
            Door(
                name="https",
                protocol="https",
                prefix="https://127.0.0.1:1095/store",
                token_pools=("pool*.example.org", "[::1]:1"),
            ),
            Door(name="rucio", protocol="root", rse="A_DISK", cache=DoorCache()),
            Door(
                name="pinned",
                protocol="root",
                rse="A_DISK",
                prefix="root://r//store/A",
                cache=DoorCache(evict="rm -f /c{path}", files="/c", monitor="[::1]:9931"),
            ),
        ),
        ceilings=Ceilings(
            jobs=1000, in_flight=50, bytes_per_day=10_000_000_000_000, mb_per_s=100.0
        ),
        storage="XRootD",
        requirements='TARGET.GLIDEIN_Site == "SITE_A"',
        software={"*": "cvmfs:ROOT/{version}/x86_64-debian12-gcc12-opt"},
        cvmfs="/path/cvmfs",
        python="/usr/bin/python3.9",
        python_views=("LCG_106/x86_64-el9-gcc13-opt",),
        templates=tmp_path / "templates",
        submit={"accounting_group": "group_io", "request_gpus": "1", "+WantX": "true"},
        environment={"https_proxy": "http://squid.example.org:3128"},
        labels=("near",),
    )
    desk = sites.sites["DESK"]
    assert (desk.batch, desk.doors[0].prefix) == ("local", str(tmp_path / "data"))
    pools = token_pool_environment(sites.sites["SITE_A"].doors)
    assert pools == {TOKEN_POOLS_VARIABLE: "127.0.0.1:1095=pool*.example.org,[::1]:1"}
    copy = tmp_path / "copy.toml"
    sites_file.write_sites_file(sites.sites.values(), sites.pools.values(), copy)
    assert sites_file.read_sites_file(copy) == sites


@pytest.mark.parametrize(
    ("protocol", "prefix", "url"),
    [
        ("root", "root://h:1//a/", "root://h:1//a/set/f.root"),
        ("root", "root://u@h", "root://u@h//set/f.root"),
        ("root", "root://h//", "root://h//set/f.root"),
        ("https", "https://h/", "https://h/set/f.root"),
        ("file", "/a/", "/a/set/f.root"),
    ],
)
def test_door_builds_file_url(tmp_path: Path, protocol: str, prefix: str, url: str) -> None:
    text = f"[sites.A]\ndoors = [{{name = 'd', protocol = '{protocol}', prefix = '{prefix}'}}]\n"
    assert read(tmp_path, text).sites["A"].doors[0].file_url("set", "f.root") == url


@pytest.mark.parametrize("content", [b"\xff", None])
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sites.toml"
    if content:
        path.write_bytes(content)
    with pytest.raises(SitesError, match=r"sites\.toml"):
        sites_file.read_sites_file(path)


def test_published_schema_matches_models() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert published == site_model.build_json_schema(), (
        "run: treehammer sites schema > submit/sites/sites.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(tomllib.loads(EVERYTHING), published)


@pytest.mark.parametrize(
    "text",
    [
        "[sitez.A]\n",
        "[sites.A]\n",
        "[sites.A]\ndoors = []\n",
        "[sites.A]\ndoors = [{name = 'd', protocol = 'dav', prefix = '/'}]\n",
        "[pools.p]\nspool = 1\n",
    ],
)
def test_schema_rejects_invalid_documents(tmp_path: Path, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), site_model.build_json_schema())
    with pytest.raises(SitesError):
        read(tmp_path, text)


def test_local_batch_system_may_be_named(tmp_path: Path) -> None:
    door = 'name = "file"\nprotocol = "file"\nprefix = "/data"\n'
    text = f'[sites.HERE]\nbatch = "local"\n[[sites.HERE.doors]]\n{door}'
    (site,) = read(tmp_path, text).sites.values()
    assert site.is_local


def test_invalid_site_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    with pytest.raises(SitesError, match="reserved for this machine"):
        sites_file.write_sites_file(
            [
                Site(
                    name="local",
                    batch="local",
                    doors=(Door(name="f", protocol="file", prefix="/"),),
                )
            ],
            [],
            path,
        )
    assert not path.exists()
