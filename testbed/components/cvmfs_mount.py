"""A CVMFS mount as sites have it, around the real ROOTs of wheels.

The layout is that of ``sft.cern.ch``: releases by package, version and platform; views that hold
nothing but links into them and a script that sets all of a view up.  The scripts do what the real
ones do, the unpleasant included: they find themselves by ``BASH_ARGV``, greet on standard output,
use variables that are not set, go on after commands that fail, and end with one.
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

from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software import providers, wheel_environments
from treehammer.errors import TestbedError
from treehammer.testbed.core.component import DaemonSpec, ProgressCallback, VisibleFolder, Workspace

REPOSITORY = "sft.cern.ch"
VIEW = "LCG_106"
#: As the releases of CERN name it: architecture, system, compiler, kind of build.
PLATFORM = f"{platform.machine()}-linux-wheel-opt"
#: What a site's ``software`` says for a release on this mount.
AXIS_VALUE = f"cvmfs:ROOT/{{version}}/{PLATFORM}"

#: Of an environment's packages, those without which ROOT does not start.
_PACKAGES = ("ROOT", "cppyy", "root.libs", "numpy", "numpy.libs", "libcppyy*")
#: Parts of Python's library that no job imports, 400 MB of them here and there.
_EXCLUDED_FOLDERS = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "config-*")
_SCRIPTS = Path(__file__).parent / "cvmfs_scripts"


# --- The mount ------------------------------------------------------------------------------


def install_release(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
    """Put a release below ``mount``, beside those that are there.

    Args:
        mount: what ``/cvmfs`` would be.
        environment: of a wheel, whose ROOT is linked into the tree.
        version: of that ROOT.
        build: the platform, as it is part of paths.

    Returns:
        Its folder; ``cvmfs:ROOT/VERSION/BUILD`` leads there.
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
    """Put a release below ``mount`` and a view with it, as :func:`make_release` does.

    Returns:
        The folder of the view; ``cvmfs:VIEW/BUILD`` leads there.
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


def _install_root(folder: Path, packages: Path, python: Path) -> Path:
    """An installation as CMake makes it, with the Python that its wheel was installed for.

    ROOT's modules for Python lie beside its libraries.
    """
    name = packages.parent.name
    for item in (packages / "ROOT").iterdir():
        if item.name not in ("bin", "lib"):
            _make_link(folder / item.name, item)
    beside = [item for pattern in _PACKAGES for item in packages.glob(pattern)]
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


# --- Bringing an environment to where jobs may read -------------------------------------------


def copy_root_environment(environment: Path, folder: Path) -> Path:
    """Have a wheel's ROOT, and the Python it runs in, below ``folder``: it needs no other place.

    Quick when it is there.  Hard links where both lie on one disk (a second, no room), copies
    otherwise.

    Args:
        environment: made by :func:`treehammer.collectors.software.providers.prepare_software`.
        folder: to keep it in.

    Returns:
        What takes the environment's place.

    Raises:
        OSError: it cannot be read or written.
    """
    interpreter = (environment / "bin" / "python").resolve()
    packages = next((environment / "lib").glob("python3*/site-packages"))
    name = packages.parent.name
    made = (environment / wheel_environments.MARKER_NAME).stat().st_mtime_ns
    key = hashlib.sha256(
        f"{interpreter} {made} {_EXCLUDED_FOLDERS} {_PACKAGES}".encode()
    ).hexdigest()[:12]
    brought = folder / f"{environment.name}-{key}"
    with hold_lock(folder / f"{environment.name}.lock"):
        if not brought.exists():
            part = folder / f"{environment.name}.part"
            if part.exists():
                shutil.rmtree(part)
            copy_python(interpreter, name, part)
            for item in [item for pattern in _PACKAGES for item in packages.glob(pattern)]:
                _copy_tree(item, part / "packages" / "lib" / name / "site-packages" / item.name)
            (part / "packages" / "bin").mkdir()
            (part / "packages" / "bin" / "python").symlink_to(f"../../bin/{name}")
            part.rename(brought)
    return brought / "packages"


def copy_python(interpreter: Path, name: str, folder: Path) -> Path:
    """Have a Python with its library, and no packages, below a folder; the interpreter there.

    Args:
        interpreter: the program itself, no link.
        name: as its version has it, e.g. ``python3.11``.
        folder: need not be there.
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
    """The standard library of the Python that is installed in ``base``."""
    if Path(sys.base_prefix).resolve() == base:
        return Path(sysconfig.get_path("stdlib"))
    return base / "lib" / name


def _link_or_copy(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    if follow_symlinks:
        try:
            os.link(source, target)
            return target
        except OSError:  # another disk, or somebody else's file
            pass
    return str(shutil.copy2(source, target, follow_symlinks=follow_symlinks))


# --- The part of a testbed ------------------------------------------------------------------


class CvmfsMount:
    """The ROOT releases of a testbed's jobs, on a mount that all its sites share.

    Args:
        box: the testbed.
    """

    name = "cvmfs"

    def __init__(self, box: Workspace) -> None:
        self.box = box
        self._brought: dict[str, Path] = {}

    @property
    def mount(self) -> Path:
        """What ``/cvmfs`` is on the nodes."""
        return cvmfs_folder(self.box)

    @property
    def _releases_folder(self) -> Path:
        return self.box.cache / "releases"

    def install(self, say: ProgressCallback) -> None:
        """Have the wheels in the cache, and what jobs need of them in a part of it that jobs see.

        Raises:
            TestbedError: one cannot be had.
        """
        for version in self.box.releases:
            request = providers.parse_software_request(f"wheel:{version}")
            try:
                made = providers.prepare_software(request, self.box.software_dir, say)
                self._brought[version] = copy_root_environment(
                    Path(made.location), self._releases_folder
                )
            except ExecutionError as error:
                raise TestbedError(str(error), where=f"ROOT {version}") from error
            except (OSError, shutil.Error) as error:
                raise TestbedError(
                    f"cannot be put where jobs see it: {error}",
                    where=f"ROOT {version}",
                    hint=f"Make room below {self.box.cache}, or choose another --cache-dir.",
                ) from error

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """The mount, and what its links lead to."""
        return [
            VisibleFolder(self.mount, self.mount),
            VisibleFolder(self._releases_folder, self._releases_folder),
        ]

    def configure(self) -> None:
        """Build the mount anew.

        Raises:
            TestbedError: it cannot be written.
        """
        try:
            if self.mount.exists():
                shutil.rmtree(self.mount)
            self.mount.mkdir(mode=0o755)
            for version, environment in self._brought.items():
                install_release(self.mount, environment, version)
        except OSError as error:
            raise TestbedError(f"cannot be written: {error}", where=str(self.mount)) from error

    def daemons(self) -> Sequence[DaemonSpec]:
        """None: it is a folder."""
        return []

    def describe_missing(self) -> str:
        """Nothing, once it is configured."""
        return ""

    def finish_setup(self) -> None:
        """Nothing is left to be done."""

    def clean_up(self) -> None:
        """Nothing lies outside the box's folder."""


def cvmfs_folder(box: Workspace) -> Path:
    """Where a testbed has its CVMFS."""
    return box.folder / "cvmfs"
