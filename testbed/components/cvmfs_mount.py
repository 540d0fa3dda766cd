"""A simulated CVMFS mount with the ROOT installations of wheels, and the client of load tests.

The layout is that of ``sft.cern.ch``: releases by package, version and platform, and views of
links with one set-up script. The scripts behave like the real ones, flaws included: they locate
themselves by ``BASH_ARGV``, print to standard output, use unset variables, continue after failed
commands, and end with one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software import providers, wheels
from treehammer.errors import TestbedError
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.workspace import (
    Component,
    DaemonSpec,
    ProgressCallback,
    VisibleFolder,
    Workspace,
)

REPOSITORY = "sft.cern.ch"
VIEW = "LCG_106"
#: CERN's name of a platform: architecture, system, compiler, build type.
PLATFORM = f"{platform.machine()}-linux-wheel-opt"
#: A site's ``software`` entry for releases on this mount.
AXIS_VALUE = f"cvmfs:ROOT/{{version}}/{PLATFORM}"

#: XRootD client of the shipped load tests.
CLIENT_VERSION = "6.2.1"

#: Packages of an environment that ROOT needs to start.
ROOT_PACKAGES = ("ROOT", "cppyy", "root.libs", "numpy", "numpy.libs", "libcppyy*")
#: Packages that no job imports.
_INSTALLERS = ("pip*", "setuptools*", "_distutils_hack", "distutils-precedence.pth")
#: Parts of Python's library (up to 400 MB) that no job imports.
_EXCLUDED_FOLDERS = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "config-*")
#: Copy program of XRootD.
_COPY_PROGRAM = "xrdcp"
_SCRIPTS = Path(__file__).parent / "cvmfs_scripts"


# --- The mount ------------------------------------------------------------------------------


def install_release(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
    """Add a release to the mount.

    Args:
        mount: the folder that represents ``/cvmfs``.
        environment: a wheel's environment, whose ROOT is linked into the tree.
        version: of that ROOT.
        build: the platform in the paths.

    Returns:
        Its folder, for ``cvmfs:ROOT/VERSION/BUILD``.
    """
    lcg = mount / REPOSITORY / "lcg"
    packages = next((environment / "lib").glob("python3*/site-packages"))
    interpreter = (environment / "bin" / "python").resolve()
    short = packages.parent.name.removeprefix("python")
    python = lcg / "releases" / "Python" / f"{short}.0-4c5d6" / build
    _make_link(python, interpreter.parent.parent)
    root = _install_root(lcg / "releases" / "ROOT" / f"{version}-1a2b3" / build, packages, python)
    _make_link(lcg / "app" / "releases" / "ROOT" / version / build, root)
    return root


def install_view(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
    """Add a release and a view of it to the mount; see :func:`install_release`.

    Returns:
        The folder of the view, for ``cvmfs:VIEW/BUILD``.
    """
    root = install_release(mount, environment, version, build)
    lcg = mount / REPOSITORY / "lcg"
    packages = next((environment / "lib").glob("python3*/site-packages"))
    name = packages.parent.name
    python = lcg / "releases" / "Python" / f"{name.removeprefix('python')}.0-4c5d6" / build
    _write_script(lcg / "releases" / "gcc" / "13.1.0" / "x86_64-el9" / "setup.sh", "compiler.sh")
    view = lcg / "views" / VIEW / build
    for folder in ("bin", "lib", "include"):
        for item in (root / folder).iterdir():
            if item.name not in ("thisroot.sh", name):
                _make_link(view / folder / item.name, item)
    for link in ("python", "python3", name):
        _make_link(view / "bin" / link, python / "bin" / name)
    for package in ("numpy", "numpy.libs"):
        _make_link(view / "lib" / name / "site-packages" / package, packages / package)
    _write_script(view / "setup.sh", "view.sh")
    return view


def install_client(mount: Path, environment: Path) -> Path:
    """Add the XRootD client to the mount, as a virtual environment.

    Its interpreter is a script, since Python's library is not where the interpreter was linked to.

    Returns:
        Its folder, for ``xrootd:FOLDER``.
    """
    folder = client_folder(mount)
    interpreter = (environment / "bin" / "python").resolve()
    _make_link(folder / "lib", environment / "lib")
    (folder / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n", encoding="utf-8")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        "#!/bin/bash\n"
        f"export LD_LIBRARY_PATH={interpreter.parent.parent / 'lib'}:$LD_LIBRARY_PATH\n"
        f'exec -a "$0" {interpreter} "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    return folder


def install_copy_program(client: Path, programs: Path, folder: Path) -> None:
    """Add ``xrdcp`` to the client's programs.

    The program of a Debian package finds its libraries where it was unpacked: a script names the
    copies that jobs can read.

    Args:
        client: made by :func:`install_client`.
        programs: ``bin`` of unpacked packages, beside ``lib`` with their libraries.
        folder: for the copies; an earlier one is kept.
    """
    if not folder.exists():
        with hold_lock(folder.with_name(f"{_COPY_PROGRAM}.lock")):
            if not folder.exists():
                part = folder.with_name(f"{_COPY_PROGRAM}.part")
                if part.exists():
                    shutil.rmtree(part)
                _copy_tree(programs / _COPY_PROGRAM, part / _COPY_PROGRAM)
                _copy_tree(programs.parent / "lib", part / "lib")
                part.rename(folder)
    [loader] = (folder / "lib").glob("*/ld-linux-*.so.*")
    path = client / "bin" / _COPY_PROGRAM
    path.write_text(
        f"#!/bin/sh\nexec {loader} --library-path {loader.parent}:{folder / 'lib'} "
        f'{folder / _COPY_PROGRAM} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)


def _install_root(folder: Path, packages: Path, python: Path) -> Path:
    """Create an installation like CMake's, with the Python of its wheel.

    ROOT's Python modules are beside its libraries.
    """
    name = packages.parent.name
    for item in (packages / "ROOT").iterdir():
        if item.name not in ("bin", "lib"):
            _make_link(folder / item.name, item)
    beside = [item for pattern in ROOT_PACKAGES for item in packages.glob(pattern)]
    for item in [*(packages / "ROOT" / "lib").iterdir(), *beside]:
        _make_link(folder / "lib" / item.name, item)
    for item in (python / "lib").glob("libpython3*.so*"):
        _make_link(folder / "lib" / item.name, item)
    for item in (packages / "ROOT" / "bin").iterdir():
        _make_link(folder / "bin" / item.name, item)
    _make_link(folder / "bin" / name, python / "bin" / name)
    _write_script(folder / "bin" / "thisroot.sh", "thisroot.sh")
    return folder


def _make_link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target)


def _write_script(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shutil.copyfile(_SCRIPTS / script, path)


# --- Copying an environment to a folder that jobs can read ------------------------------------


def copy_environment(
    environment: Path, folder: Path, packages: Sequence[str] = ROOT_PACKAGES
) -> Path:
    """Copy packages of an environment and its Python to a self-contained folder.

    Fast if it exists. On one disk files are hard-linked (a second, no space), otherwise copied.

    Args:
        environment: made by :func:`treehammer.collectors.software.providers.prepare_software`.
        folder: the destination.
        packages: patterns of the packages to copy.

    Returns:
        The copied environment.

    Raises:
        OSError: a file cannot be read or written.
    """
    interpreter = (environment / "bin" / "python").resolve()
    installed = next((environment / "lib").glob("python3*/site-packages"))
    name = installed.parent.name
    modified_ns = (environment / wheels.MARKER_NAME).stat().st_mtime_ns
    key = hashlib.sha256(
        f"{interpreter} {modified_ns} {_EXCLUDED_FOLDERS} {packages}".encode()
    ).hexdigest()[:12]
    target = folder / f"{environment.name}-{key}"
    if target.exists():  # also in a cache that this user cannot write
        return target / "packages"
    with hold_lock(folder / f"{environment.name}.lock"):
        if not target.exists():
            part = folder / f"{environment.name}.part"
            if part.exists():
                shutil.rmtree(part)
            copy_python(interpreter, name, part)
            part_packages = part / "packages"
            for item in [item for pattern in packages for item in installed.glob(pattern)]:
                if not any(item.match(pattern) for pattern in _INSTALLERS):
                    _copy_tree(item, part_packages / "lib" / name / "site-packages" / item.name)
            (part_packages / "bin").mkdir()
            (part_packages / "bin" / "python").symlink_to(f"../../bin/{name}")
            part.rename(target)
    return target / "packages"


def copy_python(interpreter: Path, name: str, folder: Path) -> Path:
    """Copy a Python and its library, without packages; return the interpreter.

    Args:
        interpreter: the program itself, not a link.
        name: with version, e.g. ``python3.11``.
        folder: the destination; created if missing.
    """
    base = interpreter.parent.parent
    _copy_tree(interpreter, folder / "bin" / name)
    _copy_tree(_standard_library(base, name), folder / "lib" / name, leave=_EXCLUDED_FOLDERS)
    for item in (base / "lib").glob("libpython3*.so*"):
        _copy_tree(item.resolve(), folder / "lib" / item.name)
    return folder / "bin" / name


def _copy_tree(source: Path, target: Path, leave: Sequence[str] = ()) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        unused = shutil.ignore_patterns(*leave)
        shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy, ignore=unused)
    else:
        _link_or_copy(str(source), str(target))


def _standard_library(base: Path, name: str) -> Path:
    """Return the standard library of the Python installed in ``base``."""
    if Path(sys.base_prefix).resolve() == base:
        return Path(sysconfig.get_path("stdlib"))
    return base / "lib" / name


def _link_or_copy(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    if follow_symlinks:
        try:
            os.link(source, target)
            return target
        except OSError:  # another disk, or another owner
            pass
    return str(shutil.copy2(source, target, follow_symlinks=follow_symlinks))


# --- The component --------------------------------------------------------------------------


class CvmfsMount(Component):
    """Software for a testbed's jobs, on a mount shared by all sites.

    Args:
        box: the testbed.
    """

    name = "cvmfs"

    def __init__(self, box: Workspace) -> None:
        self.box = box
        self._brought: dict[str, Path] = {}
        self._client: Path | None = None

    @property
    def mount(self) -> Path:
        """Folder that represents ``/cvmfs`` on the nodes."""
        return cvmfs_folder(self.box)

    @property
    def _releases_folder(self) -> Path:
        return self.box.cache / "releases"

    def install(self, say: ProgressCallback) -> None:
        """Install the programs into the cache and copy them to a folder that jobs can read.

        Raises:
            TestbedError: one cannot be installed.
        """
        for version in self.box.releases:
            self._brought[version] = self._bring(f"wheel:{version}", ROOT_PACKAGES, say)
        self._client = self._bring(f"xrootd:{CLIENT_VERSION}", ("*",), say)
        xrootd_storage.install_servers(xrootd_storage.SUITE, self.box.cache, say)

    def _bring(self, request: str, packages: Sequence[str], say: ProgressCallback) -> Path:
        """Install a program into the cache and copy it to a folder that jobs can read."""
        try:
            software = providers.prepare_software(
                providers.parse_software_request(request), self.box.software_dir, say
            )
            return copy_environment(Path(software.location), self._releases_folder, packages)
        except ExecutionError as error:
            raise TestbedError(str(error), where=request) from error
        except (OSError, shutil.Error) as error:
            raise TestbedError(
                f"cannot be copied to a folder that jobs can read: {error}",
                where=request,
                hint=f"Free space below {self.box.cache}, or choose another --cache-dir.",
            ) from error

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return the mount and the targets of its links."""
        return [
            VisibleFolder(self.mount, self.mount),
            VisibleFolder(self._releases_folder, self._releases_folder),
        ]

    def configure(self) -> None:
        """Rebuild the mount.

        Raises:
            TestbedError: it cannot be written.
        """
        try:
            if self.mount.exists():
                shutil.rmtree(self.mount)
            self.mount.mkdir(mode=0o755)
            for version, environment in self._brought.items():
                install_release(self.mount, environment, version)
            if self._client:
                client = install_client(self.mount, self._client)
                programs = xrootd_storage.programs_folder(xrootd_storage.SUITE, self.box.cache)
                version = xrootd_storage.read_version(programs)
                install_copy_program(client, programs, self._releases_folder / f"xrdcp-{version}")
        except OSError as error:
            raise TestbedError(f"cannot be written: {error}", where=str(self.mount)) from error

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return nothing: a mount has no daemon."""
        return []


def cvmfs_folder(box: Workspace) -> Path:
    """Return the CVMFS folder of a testbed."""
    return box.folder / "cvmfs"


def client_folder(mount: Path) -> Path:
    """Return the folder of the XRootD client on a mount."""
    return mount / REPOSITORY / "lcg" / "releases" / "xrootd" / CLIENT_VERSION / PLATFORM
