"""Root folders of Debian systems, for programs that expect a whole system of their own.

They are unpacked from packages without their installation scripts, for use with chroot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import TestbedError
from treehammer.testbed.core.component import ProgressCallback
from treehammer.testbed.install import debian_packages

#: Packages of a system in which shell and Python scripts run.
SYSTEM_PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "dash",
    "findutils",
    "grep",
    "hostname",
    "iproute2",
    "libc-bin",
    "login",
    "mawk",
    "openssl",
    "passwd",
    "perl",
    "procps",
    "python3",
    "sed",
    "time",
    "util-linux",
)
#: Version of the unpacking; roots of other versions are unpacked again.
ROOT_FORMAT = 2
#: Folders that Debian keeps below /usr.
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib64")


def unpack_system(
    name: str, packages: Sequence[str], suite: str, cache: Path, say: ProgressCallback
) -> Path:
    """Unpack a Debian system with some packages; return its root folder.

    Fast if it exists.

    Args:
        name: of the tree, for people.
        packages: unpacked with their dependencies and :data:`SYSTEM_PACKAGES`.
        suite: of Debian, e.g. ``trixie``.
        cache: folder of trees and packages.
        say: receives progress.

    Raises:
        TestbedError: a program is missing, or the packages cannot be fetched.
    """
    tree = cache / f"{name}-{suite}"
    selected = sorted({*packages, *SYSTEM_PACKAGES})
    request = {"format": ROOT_FORMAT, "packages": selected}
    with hold_lock(cache / f"{name}-{suite}.lock"):
        if not debian_packages.is_complete(tree, request):
            debian_packages.check_tools()
            archives = debian_packages.fetch_archives(name, selected, suite, cache, say)
            part = tree.with_name(f"{tree.name}.part")
            for old in (part, tree):
                if old.exists():
                    shutil.rmtree(old)
            _unpack_root(part / "root", [*archives.values()])
            mark = part / debian_packages.COMPLETION_FILE
            mark.write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
            part.rename(tree)
    return tree / "root"


def _unpack_root(root: Path, archives: Sequence[Path]) -> None:
    for folder in _MERGED_FOLDERS:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for archive in archives:
        _unpack_archive(root, archive)
    for excluded in debian_packages.EXCLUDED_FOLDERS:
        shutil.rmtree(root / excluded, ignore_errors=True)
    # The installation scripts of these packages would do the same.
    for file in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{file}.master", root / "etc" / file)
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "usr/bin/awk").symlink_to("mawk")
    in_root = ["chroot", str(root)]
    debian_packages.run_command([*in_root, "/usr/sbin/ldconfig"])
    # Without it, every start of a Python program would compile its modules again.
    folders = ["/usr/lib/python3", *(f"/usr/lib/{p.name}" for p in root.glob("usr/lib/python3.*"))]
    debian_packages.run_command([*in_root, "/usr/bin/python3", "-m", "compileall", "-qq", *folders])


def _unpack_archive(root: Path, archive: Path) -> None:
    tar = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
    ) as packed:
        result = subprocess.run(tar, stdin=packed.stdout, check=False, capture_output=True)
    if result.returncode or packed.returncode:
        raise TestbedError(
            f"cannot be unpacked: {os.fsdecode(result.stderr).strip()}",
            where=archive.name,
            hint="Check the free disk space, then repeat.",
        )


def copy_folders(root: Path, target: Path, names: Sequence[str]) -> None:
    """Copy folders of a system, which are written to, with links and owners."""
    debian_packages.run_command(["cp", "-a", *(str(root / name) for name in names), str(target)])
