"""Jobs of one site that read the storage of others, on a real grid."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from grid_fixtures import Grid
from grid_user import GridUser

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.specs.dataset_specs import RawSpec
from treehammer.submit.sites import sites_file
from treehammer.testbed.components import site_list


def test_jobs_of_one_site_use_doors_of_others(grid: Grid, tmp_path: Path) -> None:
    """A test without a dataset, whose measurements have the facts of the door all the same."""
    known = sites_file.read_sites_file(grid.sites_file).sites
    reader, *storages = grid.box.sites
    user = GridUser(tmp_path, grid)
    user.write_sites_file(**{name: {"doors": known[name].doors} for name in grid.box.sites})
    user.set_payload("true")
    user.submit_campaign("--sites", ",".join(storages), "--from", reader, "--wait")
    facts = ("site", "storage_site", "data_server", "server_version", "door_rtt_s")
    rows = user.read_measurements(*facts)
    assert not [row for row in rows if row["failure_class"]]
    addresses = {name: urlsplit(known[name].doors[0].prefix).netloc for name in storages}
    assert {(row["site"], row["storage_site"], row["data_server"]) for row in rows} == {
        (reader, name, address) for name, address in addresses.items()
    }
    assert {str(row["server_version"])[:7] for row in rows} == {"XRootD "}
    distant = [float(str(row["door_rtt_s"])) for row in rows if row["storage_site"] == storages[-1]]
    assert all(rtt_s > 0.005 for rtt_s in distant), distant


def test_raw_files_are_read_through_a_remote_door(grid: Grid, tmp_path: Path) -> None:
    """The bytes that a job receives at another site are those of the generator."""
    known = sites_file.read_sites_file(grid.sites_file).sites
    reader = grid.box.sites[0]
    storage = next(
        name for name in grid.box.sites if name != reader and known[name].find_door("http")
    )
    user = GridUser(tmp_path, grid)
    user.write_sites_file(**{name: {"doors": known[name].doors} for name in grid.box.sites})
    catalogue = FolderCatalogue(user.settings.datasets_dir)
    spec = RawSpec("streams", "two files", 3, 2, 2_500_000, "", "")
    manifest = catalogue.make_raw(spec)
    site_list.place_dataset("streams", catalogue, grid.box)
    expected = json.dumps([file.sha256 for file in manifest.files])
    script = (
        "import hashlib, os, urllib.request as web; "
        'urls = os.environ["TREEHAMMER_URLS"].split(); '
        "found = [hashlib.sha256(web.urlopen(url).read()).hexdigest() for url in urls]; "
        f"assert found == {expected}"
    )
    user.set_payload(f"/usr/bin/python3 -c '{script}' || exit 9")
    user.submit_campaign(
        *(
            "--sites",
            storage,
            "--from",
            reader,
            "-S",
            "dataset=streams",
            "-P",
            "door=http",
            "--wait",
        )
    )
    rows = user.read_measurements("site", "storage_site", "file_size_bytes", "failure_message")
    assert rows
    assert not [row["failure_message"] for row in rows if row["failure_class"]]
    assert {(row["site"], row["storage_site"], row["file_size_bytes"]) for row in rows} == {
        (reader, storage, 5_000_000)
    }


@pytest.mark.parametrize(
    "test, operation, options",
    [
        ("open-rate", "open", ("-P", "clients=5", "-S", "load.duration_s=2")),
        # Its copy program, too.
        (
            "copy",
            "copy",
            (
                *("-P", "clients=2", "-P", "direction=read"),
                *("-S", "load.writes=false", "-S", "settings.files=5"),
            ),
        ),
    ],
)
def test_shipped_load_test_runs_at_a_site_of_the_testbed(
    grid: Grid, tmp_path: Path, test: str, operation: str, options: tuple[str, ...]
) -> None:
    """The client of load tests is on the testbed's CVMFS mount."""
    known = sites_file.read_sites_file(grid.sites_file).sites
    reader, storage = grid.box.sites[:2]
    user = GridUser(tmp_path, grid)
    user.write_sites_file(
        **{
            name: {"doors": known[name].doors, "software": known[name].software}
            for name in (reader, storage)
        }
    )
    catalogue = FolderCatalogue(user.settings.datasets_dir)
    catalogue.make_raw(RawSpec("small", "two files", 3, 2, 1_000_000, "", ""))
    site_list.place_dataset("small", catalogue, grid.box)
    done = user.invoke_command(
        *("submit", test, "--sites", storage, "--from", reader, "--wait"),
        *("-S", "dataset=small", "-P", "door=root", *options),
        *("-S", "load.step_s=1"),
    )
    assert done.exception is None, (done.output, done.exception)
    (found,) = json.loads(user.invoke_command("summary", "--json").stdout)
    assert (found["operation"], found["failures"]) == (operation, {})
    if test == "open-rate":
        assert found["attempted_hz"] == 10.0
