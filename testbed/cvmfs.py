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

from treehammer.collectors import software
from treehammer.collectors.failures import Fault
from treehammer.collectors.files import locked
from treehammer.collectors.providers import wheel
from treehammer.errors import TestbedError
from treehammer.testbed.parts import Box, Daemon, Say, View

REPOSITORY = "sft.cern.ch"
VIEW = "LCG_106"
#: As the releases of CERN name it: architecture, system, compiler, kind of build.
PLATFORM = f"{platform.machine()}-linux-wheel-opt"
#: What a site's ``software`` says for a release on this mount.
AXIS_VALUE = f"cvmfs:ROOT/{{version}}/{PLATFORM}"

#: Of an environment's packages, those without which ROOT does not start.
_PACKAGES = ("ROOT", "cppyy", "root.libs", "numpy", "numpy.libs", "libcppyy*")
#: Parts of Python's library that no job imports, 400 MB of them here and there.
_UNUSED = ("site-packages", "dist-packages", "test", "idlelib", "ensurepip", "config-*")
_SCRIPTS = Path(__file__).parent / "cvmfs_scripts"


# --- The mount ------------------------------------------------------------------------------


def make_release(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
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
    _link(python, interpreter.parent.parent)
    root = _root(lcg / "releases" / "ROOT" / f"{version}-1a2b3" / build, packages, python)
    _link(lcg / "app" / "releases" / "ROOT" / version / build, root)
    return root


def make_view(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
    """Put a release below ``mount`` and a view with it, as :func:`make_release` does.

    Returns:
        The folder of the view; ``cvmfs:VIEW/BUILD`` leads there.
    """
    root = make_release(mount, environment, version, build)
    lcg = mount / REPOSITORY / "lcg"
    packages = next((environment / "lib").glob("python3*/site-packages"))
    name = packages.parent.name
    python = lcg / "releases" / "Python" / f"{name.removeprefix('python')}.0-4c5d6" / build
    _write(lcg / "releases" / "gcc" / "13.1.0" / "x86_64-el9" / "setup.sh", "compiler.sh")
    view = lcg / "views" / VIEW / build
    for folder in ("bin", "lib", "include"):
        for item in (root / folder).iterdir():
            if item.name not in ("thisroot.sh", name):
                _link(view / folder / item.name, item)
    for link in ("python", "python3", name):
        _link(view / "bin" / link, python / "bin" / name)
    for package in ("numpy", "numpy.libs"):
        _link(view / "lib" / name / "site-packages" / package, packages / package)
    _write(view / "setup.sh", "view.sh")
    return view


def _root(folder: Path, packages: Path, python: Path) -> Path:
    """An installation as CMake makes it, with the Python that its wheel was installed for.

    ROOT's modules for Python lie beside its libraries.
    """
    name = packages.parent.name
    for item in (packages / "ROOT").iterdir():
        if item.name not in ("bin", "lib"):
            _link(folder / item.name, item)
    beside = [item for pattern in _PACKAGES for item in packages.glob(pattern)]
    for item in [*(packages / "ROOT" / "lib").iterdir(), *beside]:
        _link(folder / "lib" / item.name, item)
    for item in (python / "lib").glob("libpython3*.so*"):
        _link(folder / "lib" / item.name, item)
    for item in (packages / "ROOT" / "bin").iterdir():
        _link(folder / "bin" / item.name, item)
    _link(folder / "bin" / name, python / "bin" / name)
    _write(folder / "bin" / "thisroot.sh", "thisroot.sh")
    return folder


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target)


def _write(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    shutil.copyfile(_SCRIPTS / script, path)


# --- Bringing an environment to where jobs may read -------------------------------------------


def bring(environment: Path, folder: Path) -> Path:
    """Have a wheel's ROOT, and the Python it runs in, below ``folder``: it needs no other place.

    Quick when it is there.  Hard links where both lie on one disk (a second, no room), copies
    otherwise.

    Args:
        environment: made by :func:`treehammer.collectors.software.prepare`.
        folder: to keep it in.

    Returns:
        What takes the environment's place.

    Raises:
        OSError: it cannot be read or written.
    """
    interpreter = (environment / "bin" / "python").resolve()
    packages = next((environment / "lib").glob("python3*/site-packages"))
    name = packages.parent.name
    made = (environment / wheel.MARKER).stat().st_mtime_ns
    key = hashlib.sha256(f"{interpreter} {made} {_UNUSED} {_PACKAGES}".encode()).hexdigest()[:12]
    brought = folder / f"{environment.name}-{key}"
    with locked(folder / f"{environment.name}.lock"):
        if not brought.exists():
            part = folder / f"{environment.name}.part"
            if part.exists():
                shutil.rmtree(part)
            bring_python(interpreter, name, part)
            for item in [item for pattern in _PACKAGES for item in packages.glob(pattern)]:
                _bring(item, part / "packages" / "lib" / name / "site-packages" / item.name)
            (part / "packages" / "bin").mkdir()
            (part / "packages" / "bin" / "python").symlink_to(f"../../bin/{name}")
            part.rename(brought)
    return brought / "packages"


def bring_python(interpreter: Path, name: str, folder: Path) -> Path:
    """Have a Python with its library, and no packages, below a folder; the interpreter there.

    Args:
        interpreter: the program itself, no link.
        name: as its version has it, e.g. ``python3.11``.
        folder: need not be there.
    """
    base = interpreter.parent.parent
    _bring(interpreter, folder / "bin" / name)
    _bring(_library_of(base, name), folder / "lib" / name, leave=_UNUSED)
    for item in (base / "lib").glob("libpython3*.so*"):
        _bring(item.resolve(), folder / "lib" / item.name)
    return folder / "bin" / name


def _bring(source: Path, target: Path, leave: Sequence[str] = ()) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        unused = shutil.ignore_patterns(*leave)
        shutil.copytree(source, target, symlinks=True, copy_function=_place, ignore=unused)
    else:
        _place(str(source), str(target))


def _library_of(base: Path, name: str) -> Path:
    """The standard library of the Python that is installed in ``base``."""
    if Path(sys.base_prefix).resolve() == base:
        return Path(sysconfig.get_path("stdlib"))
    return base / "lib" / name


def _place(source: str, target: str, *, follow_symlinks: bool = True) -> str:
    if follow_symlinks:
        try:
            os.link(source, target)
            return target
        except OSError:  # another disk, or somebody else's file
            pass
    return str(shutil.copy2(source, target, follow_symlinks=follow_symlinks))


# --- The part of a testbed ------------------------------------------------------------------


class CvmfsPart:
    """The ROOT releases of a testbed's jobs, on a mount that all its sites share.

    Args:
        box: the testbed.
    """

    name = "cvmfs"

    def __init__(self, box: Box) -> None:
        self.box = box
        self._brought: dict[str, Path] = {}

    @property
    def mount(self) -> Path:
        """What ``/cvmfs`` is on the nodes."""
        return mount_of(self.box)

    @property
    def _releases(self) -> Path:
        return self.box.cache / "releases"

    def install(self, say: Say) -> None:
        """Have the wheels in the cache, and what jobs need of them in a part of it that jobs see.

        Raises:
            TestbedError: one cannot be had.
        """
        for version in self.box.releases:
            request = software.parse(f"wheel:{version}")
            try:
                made = software.prepare(request, self.box.software_dir, say)
                self._brought[version] = bring(Path(made.location), self._releases)
            except Fault as error:
                raise TestbedError(str(error), where=f"ROOT {version}") from error
            except (OSError, shutil.Error) as error:
                raise TestbedError(
                    f"cannot be put where jobs see it: {error}",
                    where=f"ROOT {version}",
                    hint=f"Make room below {self.box.cache}, or choose another --cache-dir.",
                ) from error

    def views(self) -> Sequence[View]:
        """The mount, and what its links lead to."""
        return [View(self.mount, self.mount), View(self._releases, self._releases)]

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
                make_release(self.mount, environment, version)
        except OSError as error:
            raise TestbedError(f"cannot be written: {error}", where=str(self.mount)) from error

    def daemons(self) -> Sequence[Daemon]:
        """None: it is a folder."""
        return []

    def missing(self) -> str:
        """Nothing, once it is configured."""
        return ""

    def finish(self) -> None:
        """Nothing is left to be done."""

    def clean_up(self) -> None:
        """Nothing lies outside the box's folder."""


def mount_of(box: Box) -> Path:
    """Where a testbed has its CVMFS."""
    return box.folder / "cvmfs"
