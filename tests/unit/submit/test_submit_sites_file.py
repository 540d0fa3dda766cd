"""sites.toml: parsing, errors and writing, and import from CRIC."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    LoadPermission,
    Site,
    token_pool_environment,
)

PUBLISHED = Path(submit.__file__).parent / "sites" / "sites.schema.json"

EVERYTHING = """
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
[sites.DESK]
doors = [{ name = "file", protocol = "file", prefix = "data" }]
"""


def read(folder: Path, text: str) -> sites_file.SitesFileContent:
    path = folder / "sites.toml"
    path.write_text(text, encoding="utf-8")
    return sites_file.read_sites_file(path)


def test_complete_file_is_parsed(tmp_path: Path) -> None:
    found = read(tmp_path, EVERYTHING)
    assert found.pools["testbed"] == HTCondorPool(
        name="testbed",
        config=tmp_path / "condor_config",
        collector="127.0.0.1:9618",
        schedd="schedd@host",
        token_dir=Path.home() / "tokens",
        submit_dir=Path("/submit"),
    )
    assert found.pools["default"] == HTCondorPool("default")
    assert found.sites["SITE_A"] == Site(
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
            Door(name="https", protocol="https", prefix="https://127.0.0.1:1095/store"),
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
    desk = found.sites["DESK"]
    assert (desk.batch, desk.doors[0].prefix) == ("local", str(tmp_path / "data"))


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


def test_token_pools_reach_jobs_and_round_trip(tmp_path: Path) -> None:
    text = (
        "[sites.A]\ndoors = [{name = 'd', protocol = 'https', prefix = 'https://h:1/x', "
        "token_pools = ['pool*.example.org', '*.other.org:2443', '[::1]:1']}]\n"
    )
    content = read(tmp_path, text)
    (door,) = content.sites["A"].doors
    pools = "pool*.example.org,*.other.org:2443,[::1]:1"
    assert token_pool_environment([door]) == {TOKEN_POOLS_VARIABLE: f"h:1={pools}"}
    copy = tmp_path / "copy.toml"
    sites_file.write_sites_file(content.sites.values(), [], copy)
    assert sites_file.read_sites_file(copy) == content


@pytest.mark.parametrize(
    ("cache", "expected"),
    [
        ("{evict = 'rm /cache'}", "names no file"),
        ("{evict = 'rm {file}'}", "contains {file}"),
        ('{evict = "rm {path} \'"}', "No closing quotation"),
        ("{files = 'cache'}", "not an absolute path"),
        ("{monitor = 'host'}", "not HOST:PORT"),
        ("{monitor = 'host:99999'}", "not HOST:PORT"),
    ],
)
def test_wrong_caches_of_doors_are_refused(tmp_path: Path, cache: str, expected: str) -> None:
    text = f"[sites.A]\ndoors = [{{name = 'd', protocol = 'root', prefix = 'root://h//x', cache = {cache}}}]\n"
    with pytest.raises(SitesError, match=re.escape(expected)):
        read(tmp_path, text)


def test_caches_of_doors_round_trip(tmp_path: Path) -> None:
    text = (
        "[sites.A]\ndoors = [{name = 'd', protocol = 'root', prefix = 'root://h//x', cache = {}}, "
        "{name = 'e', protocol = 'root', prefix = 'root://h//x', "
        "cache = {evict = 'rm -f /c{path}', files = '/c', monitor = '[::1]:9931'}}]\n"
    )
    content = read(tmp_path, text)
    first, second = content.sites["A"].doors
    assert first.cache == DoorCache()
    assert second.cache == DoorCache(evict="rm -f /c{path}", files="/c", monitor="[::1]:9931")
    copy = tmp_path / "copy.toml"
    sites_file.write_sites_file(content.sites.values(), [], copy)
    assert sites_file.read_sites_file(copy) == content


def test_door_with_rse_round_trips(tmp_path: Path) -> None:
    text = (
        "[sites.A]\ndoors = [{name = 'd', protocol = 'root', rse = 'A_DISK'}, "
        "{name = 'f', protocol = 'root', rse = 'A_DISK', prefix = 'root://r//store/test/xrootd/A/'}]\n"
    )
    known = read(tmp_path, text)
    plain, pinned = known.sites["A"].doors
    assert (plain.rse, plain.prefix) == ("A_DISK", "")
    assert (pinned.rse, pinned.prefix) == ("A_DISK", "root://r//store/test/xrootd/A")
    copy = tmp_path / "copy.toml"
    sites_file.write_sites_file(known.sites.values(), [], copy)
    assert sites_file.read_sites_file(copy) == known


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("acounting_group = 'x'", "no submit command 'acounting_group'.*'accounting_group'"),
        ("requirements = 'x'", "set by Treehammer.*the site's own 'requirements'"),
        ("'+Project' = 'atlas'", "names the attribute atlas"),
        ("request_memory = 3000", "memory_limit_mb, and the site's ceilings.memory_mb"),
    ],
)
def test_invalid_submit_command_is_refused(tmp_path: Path, command: str, message: str) -> None:
    door = "doors = [{name = 'd', protocol = 'file', prefix = '/'}]"
    text = f"[pools.p]\n[sites.A]\npool = 'p'\n{door}\nsubmit = {{ {command} }}\n"
    with pytest.raises(SitesError, match=rf"(?s)sites\.toml:5: .*{message}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "reason"),
    [
        ("'a b' = 'x'", "'a b' is no name of an environment variable"),
        ("https_proxy = 'http://me:secret@squid:3128'", "contains a password"),
        ("TREEHAMMER_JOB = 'x'", "is set by Treehammer"),
        ("_CONDOR_SLOT = 'x'", "is set by HTCondor"),
        ("BEARER_TOKEN_FILE = '/t'", "is a credential of a user, not of a site (use --proxy"),
        ("LD_PRELOAD = '/own.so'", "changes the software that is measured"),
        ("X509_CERT_DIR = '/other'", "is set by cert_dir (expected one of them)"),
    ],
)
def test_variable_that_sites_cannot_set_is_refused(
    tmp_path: Path, variable: str, reason: str
) -> None:
    door = "doors = [{name = 'd', protocol = 'file', prefix = '/'}]\ncert_dir = '/c'"
    text = f"[sites.A]\n{door}\nenvironment = {{ {variable} }}\n"
    with pytest.raises(SitesError, match=rf"sites\.toml:4: .*{re.escape(reason)}"):
        read(tmp_path, text)


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


names = st.text("aZ09._-", min_size=1, max_size=6).map("n{}".format)
lines = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=9
).map(lambda text: "".join(filter(str.isprintable, text)).strip(" \\"))
paths = st.none() | names.map(lambda name: Path("/folder") / name)
commands = st.dictionaries(
    st.sampled_from(["rank", "accounting_group", "request_cpus"]), lines.filter(bool), max_size=2
)
attributes = st.dictionaries(
    st.sampled_from(["+Mine", "My.Other"]),
    st.sampled_from(["3", '"a b"', "Mine", "2 * RequestCpus"]),
)
counts = st.integers(0, 2**40)
doors = st.one_of(
    [
        st.builds(
            Door,
            name=names,
            protocol=st.just(protocol),
            prefix=names.map(prefix.format),
            middleware=lines,
            version=lines,
            load=st.none()
            | st.builds(
                LoadPermission,
                opens_per_s=st.integers(0, 10**9 - 1),
                clients=st.integers(0, 99),
                writable=st.just("/a"),
            ),
            settings=st.sampled_from([(), ("server_threads", "readahead_kb")]),
        )
        for protocol, prefix in (
            ("file", "/{}"),
            ("root", "root://h:1//{}"),
            ("https", "https://h/{}"),
        )
    ]
)
pools = st.builds(
    HTCondorPool, names, paths, lines, lines, st.just(None), paths, st.just(False), paths
) | st.builds(HTCondorPool, names, token_dir=paths, spool=st.booleans())


@st.composite
def documents(draw: st.DrawFn) -> tuple[list[Site], list[HTCondorPool]]:
    made_pools = draw(st.lists(pools, min_size=1, max_size=3, unique_by=lambda pool: pool.name))
    site = st.builds(
        Site,
        name=names,
        batch=st.sampled_from([f"htcondor@{pool.name}" for pool in made_pools]),
        doors=st.lists(doors, min_size=1, max_size=3, unique_by=lambda door: door.name).map(tuple),
        ceilings=st.builds(
            Ceilings,
            jobs=counts,
            in_flight=counts,
            bytes_per_day=counts,
            mb_per_s=st.floats(0, 1e9),
        ),
        storage=lines,
        requirements=lines,
        grid_resource=st.sampled_from(["", "condor a b", "arc https://h/arex/rest/1.0"]),
        software=st.dictionaries(
            lines, st.sampled_from(["cvmfs:ROOT/{version}/p", "6.40.00"]), max_size=2
        ),
        cvmfs=st.sampled_from([None, "/cvmfs"]),
        cert_dir=st.none(),
        python=names.map("/usr/{}".format),
        templates=paths,
        submit=st.builds(
            lambda commands, attributes: commands | {"+Mine": "1"} | attributes,
            commands,
            attributes,
        ),
        labels=st.lists(names, max_size=3, unique=True).map(tuple),
    )
    return draw(st.lists(site, max_size=3, unique_by=lambda site: site.name)), made_pools


@given(documents())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_written_file_round_trips(
    tmp_path: Path, document: tuple[list[Site], list[HTCondorPool]]
) -> None:
    sites, pools = document
    path = tmp_path / "sites.toml"
    sites_file.write_sites_file(sites, pools, path)
    found = sites_file.read_sites_file(path)
    assert list(found.sites.values()) == sites
    assert list(found.pools.values()) == pools


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
    wanted = cric.CricOptions("grid", requirements='TARGET.GLIDEIN_Site == "{site}"')
    sites = cric.CricImport(ALL, wanted).sites
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
    ]
    file = tmp_path / "ddmendpoint.json"
    file.write_text(json.dumps({"EXAMPLE-T2_DATADISK": entry}))
    (site,) = cric.CricImport([file], GRID).sites
    assert [(door.protocol, door.prefix) for door in site.doors] == [
        ("root", "roots://eos.example.net:1094//eos"),
        ("https", "https://eos.example.net:1094/eos"),
    ]
    for door in site.doors:
        scheme = find_scheme(door.file_url("set", "a.root"))
        assert scheme is not None
        assert scheme.protocol == door.protocol


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
