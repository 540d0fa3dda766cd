"""Import of sites from CRIC."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from treehammer.collectors.storage_access import find_scheme
from treehammer.cric import cric_import
from treehammer.errors import ConfigError, TreehammerError
from treehammer.submit.cli.sites_commands import sites as verbs
from treehammer.submit.sites import sites_file
from treehammer.submit.sites.site_model import (
    Door,
    Site,
)

DATA = Path(__file__).parent / "documents"
ALL = [DATA / f"{name}.json" for name in ("ddmendpoint", "pandaqueue", "site", "service")]

GRID = cric_import.CricOptions("grid")
PNFS = "pnfs/example.org/data/atlas/atlasdatadisk/rucio"


def import_documents(
    *names: str, options: cric_import.CricOptions = GRID
) -> cric_import.CricImport:
    return cric_import.CricImport([DATA / f"{name}.json" for name in names], options)


def test_documents_are_combined_to_sites() -> None:
    sites = {site.name: site for site in cric_import.CricImport(ALL, GRID).sites}
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
    skipped = "\n".join(cric_import.CricImport(ALL, GRID).skipped)
    for line in (
        f"EXAMPLE-BROKEN_DATADISK: invalid value of arprotocols: []; correct it in {ALL[0]}",
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
    options = cric_import.CricOptions("grid", requirements='TARGET.GLIDEIN_Site == "{site}"')
    sites = cric_import.CricImport(ALL, options).sites
    assert [site.requirements for site in sites] == [
        'TARGET.GLIDEIN_Site == "EXAMPLE-T1"',
        'TARGET.GLIDEIN_Site == "EXAMPLE-T2"',
    ]
    assert not any(site.grid_resource for site in sites)


def test_storage_type_and_path_prefix_are_applied() -> None:
    options = cric_import.CricOptions("p", "x", "SCRATCHDISK", "/treehammer/")
    site = import_documents("ddmendpoint", options=options).sites[0]
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


def test_usable_doors_are_imported_as_jobs_read_them(tmp_path: Path) -> None:
    entry = json.loads((DATA / "ddmendpoint.json").read_text())["EXAMPLE-T2_DATADISK"]
    entry["arprotocols"]["read_wan"] = [
        {"endpoint": f"{scheme}://eos.example.net:1094/", "path": "/eos/"}
        for scheme in ("roots", "davs")
    ] + [
        {"endpoint": "root://eos.example.net:99999/", "path": "/eos/"},
        {"endpoint": "root://me:secret@eos.example.net/", "path": "/eos/"},
        {"endpoint": "root://eos.example.net/", "path": "/line\nbreak"},
        {"endpoint": "srm://me:secret@eos.example.net/"},
    ]
    entry["se_flavour"] = "EOS\n5"
    file = tmp_path / "ddmendpoint.json"
    others = {"E": entry | {"arprotocols": {}}, "F": {"arprotocols": "srm://me:secret@h"}, "a": {}}
    file.write_text(json.dumps({"EXAMPLE-T2_DATADISK": entry, **others}))
    imported = cric_import.CricImport([file], GRID)
    (site,) = imported.sites
    unusable = "EXAMPLE-T2_DATADISK: door at eos.example.net: prefix contains a"
    assert {
        "E: has no protocol for reading",
        "EXAMPLE-T2: imported without a batch selector; add requirements or grid_resource",
        "EXAMPLE-T2_DATADISK: srm://***@eos.example.net/: not supported by ROOT",
        f"F: invalid value of arprotocols: 'srm://***@h'; correct it in {file}",
        "a: unknown kind of entry",
        f"{unusable} password, which every measurement would show (expected none)",
        f"{unusable} space (expected %20)",
    } <= {*imported.skipped}
    assert site.storage == "EOS 5"
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
        (None, "cannot be read"),
    ],
)
def test_invalid_document_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        cric_import.CricImport([file], GRID)


def test_command_writes_readable_sites_file(tmp_path: Path) -> None:
    output = tmp_path / "sites.toml"
    arguments = ["import", "cric", *map(str, ALL)]
    done = CliRunner().invoke(verbs, [*arguments, "-o", str(output)], catch_exceptions=False)
    assert done.exit_code == 0
    assert f"2 sites in {output}" in done.stdout
    assert "skipped: EXAMPLE-T1_DATATAPE: is on tape" in done.stderr
    expected = cric_import.CricImport(ALL, GRID).sites
    assert list(sites_file.read_sites_file(output).sites.values()) == expected

    printed = CliRunner().invoke(verbs, arguments, catch_exceptions=False)
    assert printed.stdout == output.read_text()
    with pytest.raises(ConfigError, match="exists already"):
        CliRunner().invoke(verbs, [*arguments, "-o", str(output)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--path-prefix=x", "no site in"),
        ("--pool=a b", "--pool: 'a b'"),
        ("--requirements=a\\", "--requirements: 'a"),
    ],
)
def test_documents_without_sites_and_wrong_options_are_refused(option: str, message: str) -> None:
    arguments = ["import", "cric", str(DATA / "site.json"), option]
    with pytest.raises(TreehammerError, match=message):
        CliRunner().invoke(verbs, arguments, catch_exceptions=False)
