"""Rendering of mount scripts, without mounting."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from treehammer.errors import TestbedError
from treehammer.testbed.mount_namespace import render_mount_script, topmost_inaccessible_parent
from treehammer.testbed.workspace import VisibleFolder


def test_parents_are_mounted_before_children() -> None:
    outer = VisibleFolder(Path("/data/x"), Path("/tmp"), writable=True)
    inner = VisibleFolder(Path("/tmp/box/site"), Path("/tmp/box/site"))
    lines = render_mount_script([Path("/tmp/box")], [inner, outer], ["true"]).splitlines()
    assert lines.index("mount --rbind /mnt/data/x /tmp") < lines.index("mkdir -p /tmp/box/site")
    assert "mount -o remount,bind,ro /tmp/box/site" in lines
    assert "mount -o remount,bind,ro /tmp" not in lines
    assert lines[-1] == "exec true"


def test_nested_hidden_folders_are_hidden_once() -> None:
    text = render_mount_script([Path("/a/b"), Path("/a"), Path("/a")], [], ["true"])
    assert text.count("tmpfs") == 1


def test_mount_script_quotes_names() -> None:
    odd = Path("/a b/$(touch x)/'q'")
    text = render_mount_script([odd], [VisibleFolder(odd / "c", odd / "c")], ["true"])
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0
    output = subprocess.run(
        ["sh"],
        input="mount() { printf '%s\\n' \"$@\"; }; umount() { :; }; mkdir() { :; }\n" + text,
        text=True,
        check=True,
        capture_output=True,
    ).stdout
    assert str(odd) in output.splitlines()
    assert f"/mnt{odd}/c" in output.splitlines()


@pytest.mark.parametrize(
    "used, stage", [("/home/me", "/mnt"), ("/mnt/cache", "/media"), ("/mnt", "/media")]
)
def test_mount_point_is_unused_folder(used: str, stage: str) -> None:
    assert f"umount -l {stage}\n" in render_mount_script([Path(used)], [], ["true"])


def test_missing_mount_point_is_reported() -> None:
    with pytest.raises(TestbedError, match="no folder is available"):
        render_mount_script([Path("/")], [], ["true"])


def test_topmost_inaccessible_parent(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private = tmp_path / "private"
    (private / "more").mkdir(parents=True)
    private.chmod(0o700)
    (private / "more").chmod(0o700)
    above = topmost_inaccessible_parent(private)
    assert topmost_inaccessible_parent(private / "more" / "x") == (above or private)
