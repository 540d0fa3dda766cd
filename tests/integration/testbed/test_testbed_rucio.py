"""The testbed's real Rucio: storages, distance and ordinary accounts."""

from __future__ import annotations

import os
import stat
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import rucio_users
from captured_runs import run_captured
from grid_fixtures import Grid
from rucio.common.exception import AccessDenied, InsufficientAccountLimit, RuleNotFound

from treehammer.testbed import lifecycle, process_search
from treehammer.testbed.components import rucio_server, site_list
from treehammer.testbed.components.xrootd_storage import (
    RUCIO_FOLDER,
    SITE_ALIAS_FOLDER,
    XrootdStorage,
    programs_folder,
    rse_name,
)
from treehammer.testbed.debian_packages import SUITE

SITES = ("SITE_A", "SITE_B", "SITE_C")
SIZE = 1_500_000


class Placed(NamedTuple):
    """A dataset with a rule for all sites."""

    did: dict[str, str]
    rule: str
    files: list[Path]


def files_in(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"file-{number}.bin" for number in range(count)]
    for path in paths:
        path.write_bytes(os.urandom(SIZE))
    return paths


def upload_files(client: Any, files: Sequence[Path], site: str, dataset: str) -> dict[str, str]:
    """Upload files to a site, group them in a dataset of scope ``hctest``; return its DID."""
    from rucio.client.uploadclient import UploadClient

    names = [f"{dataset}/{path.name}" for path in files]
    UploadClient(client).upload(
        [
            {
                "path": str(path),
                "rse": rse_name(site),
                "did_scope": "hctest",
                "did_name": name,
                "register_after_upload": True,
            }
            for path, name in zip(files, names, strict=True)
        ]
    )
    client.add_dataset("hctest", dataset, files=[{"scope": "hctest", "name": n} for n in names])
    return {"scope": "hctest", "name": dataset}


def add_rule(client: Any, did: dict[str, str], expression: str, copies: int) -> str:
    """Request replicas and return the rule's id."""
    (rule,) = client.add_replication_rule(
        [did], copies, expression, grouping="ALL", activity="Functional Test", lifetime=3600
    )
    return str(rule)


@pytest.fixture
def hammer(rucio_grid: Grid) -> Iterator[Any]:
    with rucio_users.rucio_client(rucio_grid, "hammer") as client:
        yield client


@pytest.fixture(scope="module")
def placed(rucio_grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> Placed:
    files = files_in(tmp_path_factory.mktemp("files"), 2)
    with rucio_users.rucio_client(rucio_grid, "hammer") as client:
        did = upload_files(client, files, "SITE_A", "everywhere")
        rule = add_rule(client, did, "treehammer=True", len(SITES))
        rucio_grid.wait_until(
            lambda: client.get_replication_rule(rule)["state"] == "OK", "the files are copied"
        )
    return Placed(did, rule, files)


def xrdfs(grid: Grid, url: str, *words: str) -> str:
    server, _, path = url.removeprefix("root://").partition("//")
    program = programs_folder(SUITE, grid.box.cache) / "xrdfs"
    asked = [str(program), server, *words, f"/{path}"]
    return run_captured(asked, env={}, check=True).stdout


def test_rses_of_sites(hammer: Any) -> None:
    tagged = {row["rse"] for row in hammer.list_rses("treehammer=True")}
    assert tagged == {f"{site}_DATA" for site in SITES}
    assert {row["rse"] for row in hammer.list_rses("site=SITE_A")} == {"SITE_A_DATA", "SITE_A_TAPE"}
    assert hammer.get_rse("SITE_A_TAPE")["rse_type"] == "TAPE"
    near = hammer.get_distance("SITE_A_DATA", "SITE_B_DATA")[0]["distance"]
    assert near < hammer.get_distance("SITE_A_DATA", "SITE_C_DATA")[0]["distance"]


def test_results_have_their_own_database(rucio_grid: Grid) -> None:
    with psycopg.connect(site_list.read_database_url(rucio_grid.box)) as connection:
        names = connection.execute("SELECT datname FROM pg_database WHERE NOT datistemplate")
        assert {"results", "rucio"} < {name for (name,) in names}
    with pytest.raises(psycopg.OperationalError, match=r"pg_hba\.conf"):
        psycopg.connect(site_list.read_database_url(rucio_grid.box).replace("/results?", "/rucio?"))


def test_distant_sites_copy_between_each_other(
    rucio_grid: Grid, hammer: Any, placed: Placed
) -> None:
    did = {"scope": "hctest", "name": f"{placed.did['name']}/{placed.files[0].name}"}
    (near,) = rucio_users.list_pfns(hammer, did, "SITE_A").values()
    (distant,) = rucio_users.list_pfns(hammer, did, "SITE_C").values()
    programs = programs_folder(SUITE, rucio_grid.box.cache)
    for source, target in ((near, f"{distant}.copy"), (distant, f"{near}.copy")):
        command = [str(programs / "xrdcp"), "--silent", "--tpc", "only", source, target]
        subprocess.run(command, env={}, check=True, timeout=60)


def test_pinned_name_leads_to_sites_copy(rucio_grid: Grid, hammer: Any, placed: Placed) -> None:
    (storage,) = [part for part in rucio_grid.parts if isinstance(part, XrootdStorage)]
    for site in SITES:
        door = next(door for door in storage.doors(site) if door.name == "rucio-pinned")
        assert door.rse == rse_name(site)
        pfn = next(iter(rucio_users.list_pfns(hammer, placed.did, site).values()))
        server, _, below = pfn.removeprefix("root://").partition(f"/{RUCIO_FOLDER}/")
        pinned = f"{door.prefix}/{below}"
        assert f"{SITE_ALIAS_FOLDER}/{site}/" in pinned
        assert server.rpartition(":")[2] in xrdfs(rucio_grid, pinned, "locate")
        assert f"Size:   {SIZE}" in xrdfs(rucio_grid, pinned, "stat")


def test_http_site_is_readable_by_rucio_url(hammer: Any, placed: Placed) -> None:
    urls = rucio_users.list_pfns(hammer, placed.did, "SITE_B", "http")
    assert {len(urllib.request.urlopen(url).read()) for url in urls.values()} == {SIZE}
    assert len(urls) == len(placed.files)
    assert not rucio_users.list_pfns(hammer, placed.did, "SITE_A", "http")


def test_accounts_have_ordinary_permissions(
    rucio_grid: Grid, placed: Placed, tmp_path: Path
) -> None:
    with rucio_users.rucio_client(rucio_grid, "guest") as guest:
        attempts: tuple[Callable[[], object], ...] = (
            lambda: guest.delete_replication_rule(placed.rule),
            lambda: guest.update_replication_rule(placed.rule, {"lifetime": 1}),
            lambda: guest.declare_bad_file_replicas(
                list(rucio_users.list_pfns(guest, placed.did, "SITE_B").values()), "no"
            ),
            lambda: guest.add_rse("MINE"),
            lambda: guest.set_local_account_limit("guest", "SITE_A_DATA", -1),
        )
        for forbidden in attempts:
            with pytest.raises(AccessDenied):
                forbidden()
        with pytest.raises(InsufficientAccountLimit):
            add_rule(guest, placed.did, "site=SITE_B", 1)
    with rucio_users.rucio_client(rucio_grid, "hammer") as hammer:
        rule = add_rule(hammer, placed.did, "site=SITE_B", 1)
        hammer.update_replication_rule(rule, {"lifetime": 60})
        hammer.delete_replication_rule(rule)
        rucio_grid.wait_until(lambda: is_gone(hammer, rule), "the rule is removed")
        with pytest.raises(AccessDenied):
            hammer.add_rse("MINE")


def is_gone(client: Any, rule: str) -> bool:
    try:
        return client.get_replication_rule(rule)["expires_at"] is not None
    except RuleNotFound:
        return True


def test_passwords_are_private(rucio_grid: Grid) -> None:
    for account in (rucio_server.ADMIN_ACCOUNT, *rucio_server.ACCOUNTS):
        status = rucio_server.rucio_client_config(rucio_grid.box, account).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.getuid())


def test_status_and_logs_include_rucio(rucio_grid: Grid) -> None:
    state = lifecycle.read_state(rucio_grid.box.folder)
    assert state is not None
    daemons = {row["daemon"] for row in lifecycle.list_daemons(state)}
    ours = {"postgresql", "rucio-issuer", "rucio-server", "rucio-daemons", "rucio-transfers"}
    assert ours <= daemons
    assert ours <= set(lifecycle.find_logs(rucio_grid.box))
    assert process_search.find_processes(rucio_grid.box.folder)
