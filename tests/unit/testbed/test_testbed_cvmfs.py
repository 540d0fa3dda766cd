"""Wheels as releases on the simulated CVMFS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from treehammer import hctests
from treehammer.collectors.software import wheels
from treehammer.collectors.software.wheels import make_root_release
from treehammer.testbed.components import cvmfs_mount
from treehammer.testbed.components.cvmfs_mount import (
    PLATFORM,
    copy_environment,
    install_release,
)

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
