"""sites.toml: parsing, errors and writing, and import from CRIC."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from treehammer import submit
from treehammer.collectors.http_requests import TOKEN_POOLS_VARIABLE
from treehammer.collectors.storage_access import find_scheme
from treehammer.errors import ConfigError, NothingToDoError, SitesError
from treehammer.submit.batch.htcondor.pool import HTCondorPool
from treehammer.submit.cli.sites_commands import sites as verbs
from treehammer.submit.sites import cric, site_model, sites_file
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


DATA = Path(__file__).parent / "cric"
ALL = [DATA / f"{name}.json" for name in ("ddmendpoint", "pandaqueue", "site", "service")]

GRID = cric.CricOptions("grid")
PNFS = "pnfs/example.org/data/atlas/atlasdatadisk/rucio"


def import_documents(*names: str, options: cric.CricOptions = GRID) -> cric.CricImport:
    return cric.CricImport([DATA / f"{name}.json" for name in names], options)


def test_documents_are_combined_to_sites() -> None:
    sites = {site.name: site for site in cric.CricImport(ALL, GRID).sites}
    assert sites == {
        "EXAMPLE-T1": Site(
            name="EXAMPLE-T1",
            batch="htcondor@grid",
            doors=(
                Door(
                    name="root",
                    protocol="root",
                    prefix=f"root://dcache.example.org:1094//{PNFS}",
                    middleware="DCACHE",
                    version="9.2.30",
                ),
                Door(
                    name="https",
                    protocol="https",
                    prefix=f"https://dcache.example.org:2880/{PNFS}",
                    middleware="DCACHE",
                    version="9.2.30",
                ),
                Door(
                    name="root-2",
                    protocol="root",
                    prefix=f"root://gateway.example.org:1094//{PNFS}",
                    middleware="DCACHE",
                ),
            ),
            storage="DCACHE",
            grid_resource="condor ce1.example.org ce1.example.org:9619",
            labels=("cloud-DE", "tier-1", "state-ACTIVE"),
        ),
        "EXAMPLE-T2": Site(
            name="EXAMPLE-T2",
            batch="htcondor@grid",
            doors=(
                Door(
                    name="root",
                    protocol="root",
                    prefix="root://eos.example.net:1094//eos/atlas/atlasdatadisk/rucio",
                    middleware="EOS",
                ),
            ),
            storage="EOS",
            grid_resource="arc https://arc.example.net:443/arex/rest/1.0",
            labels=("cloud-CH", "tier-2", "state-ACTIVE"),
        ),
    }


def test_skipped_entries_are_reported() -> None:
    skipped = "\n".join(cric.CricImport(ALL, GRID).skipped)
    for line in (
        "EXAMPLE-BROKEN_DATADISK: arprotocols: Input should be a valid dictionary",
        "EXAMPLE-T1_DATADISK: srm://dcache.example.org:8443/srm/managerv2?SFN=: not supported by ROOT",
        "EXAMPLE-T1_DATATAPE: is on tape",
        "EXAMPLE-T1_SCRATCHDISK: has type SCRATCHDISK, not DATADISK",
        "EXAMPLE-OLD_DATADISK: is DISABLED",
        "EXAMPLE-T3_DATADISK: s3://objects.example.com:443/: not supported by ROOT",
        "EXAMPLE CLOUD: not a valid site name",
        "EXAMPLE-T1: HTCONDOR-CE old.example.org:9619 (DISABLED)",
        "EXAMPLE-T1: further compute element condor ce2.example.org ce2.example.org:9619",
    ):
        assert line in skipped.splitlines(), skipped
    assert "write_wan" not in skipped
    assert "EXAMPLE-T2" not in skipped


def test_requirements_replace_compute_elements() -> None:
    options = cric.CricOptions("grid", requirements='TARGET.GLIDEIN_Site == "{site}"')
    sites = cric.CricImport(ALL, options).sites
    assert [site.requirements for site in sites] == [
        'TARGET.GLIDEIN_Site == "EXAMPLE-T1"',
        'TARGET.GLIDEIN_Site == "EXAMPLE-T2"',
    ]
    assert not any(site.grid_resource for site in sites)


def test_site_without_selector_is_reported() -> None:
    assert "EXAMPLE-T2: imported without a batch selector" in "\n".join(
        import_documents("ddmendpoint").skipped
    )


def test_storage_type_and_path_prefix_are_applied() -> None:
    site = import_documents(
        "ddmendpoint", options=cric.CricOptions("p", "x", "SCRATCHDISK", "/treehammer/")
    ).sites[0]
    assert site.doors[0].prefix.endswith("/atlasscratchdisk/rucio/treehammer")


def test_services_provide_doors() -> None:
    site = import_documents("service").sites[0]
    assert site.name == "EXAMPLE-LCG2"
    assert site.doors == (
        Door(
            name="https",
            protocol="https",
            prefix="https://dcache.example.org:2880/pnfs/example.org",
            middleware="dCache",
            version="9.2.30",
        ),
    )


def test_secure_doors_are_imported_as_jobs_read_them(tmp_path: Path) -> None:
    entry = json.loads((DATA / "ddmendpoint.json").read_text())["EXAMPLE-T2_DATADISK"]
    entry["arprotocols"]["read_wan"] = [
        {"endpoint": f"{scheme}://eos.example.net:1094/", "path": "/eos/"}
        for scheme in ("roots", "davs")
    ] + [{"endpoint": "root://eos.example.net:99999/", "path": "/eos/"}]
    file = tmp_path / "ddmendpoint.json"
    file.write_text(json.dumps({"EXAMPLE-T2_DATADISK": entry, "E": entry | {"arprotocols": {}}}))
    imported = cric.CricImport([file], GRID)
    (site,) = imported.sites
    assert "E: has no protocol for reading" in imported.skipped
    assert [(door.protocol, door.prefix) for door in site.doors] == [
        ("root", "roots://eos.example.net:1094//eos"),
        ("https", "https://eos.example.net:1094/eos"),
    ]
    schemes = [find_scheme(door.file_url("set", "a.root")) for door in site.doors]
    assert [scheme and scheme.protocol for scheme in schemes] == ["root", "https"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", "is not JSON"),
        ('{"a": {}, "b": {"c": 1, "c": 2}}', "x.json: is not JSON: duplicate key 'c'"),
        ("[]", "not a supported CRIC document"),
        ("{}", "not a supported CRIC document"),
        ('{"a": 1}', "not a supported CRIC document"),
        ("3", "not a supported CRIC document"),
        (None, "cannot be read"),
    ],
)
def test_invalid_document_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        cric.CricImport([file], GRID)


def test_unknown_entries_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"a": {"b": 1}}')
    assert cric.CricImport([file], GRID).skipped == ["a: unknown kind of entry"]


def test_command_writes_readable_sites_file(tmp_path: Path) -> None:
    output = tmp_path / "sites.toml"
    arguments = ["import", "cric", *map(str, ALL)]
    done = CliRunner().invoke(verbs, [*arguments, "-o", str(output)], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"2 sites in {output}" in done.stdout
    assert "skipped: EXAMPLE-T1_DATATAPE: is on tape" in done.stderr
    expected = cric.CricImport(ALL, GRID).sites
    assert list(sites_file.read_sites_file(output).sites.values()) == expected

    printed = CliRunner().invoke(verbs, arguments, catch_exceptions=False)
    assert printed.stdout == output.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        CliRunner().invoke(verbs, [*arguments, "-o", str(output)], catch_exceptions=False)


def test_documents_without_sites_are_refused() -> None:
    with pytest.raises(NothingToDoError):
        CliRunner().invoke(
            verbs, ["import", "cric", str(DATA / "site.json")], catch_exceptions=False
        )
