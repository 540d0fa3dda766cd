"""A planted release of ROOT: the wheel 6.42.0, in which all that can change is changed.

Its C++ is that of a cached release, from another environment.
"""

from __future__ import annotations

import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from treehammer.collectors.software.wheel_installation import WheelInstaller

RELEASE, PACKAGE = "6.42.00", "6.42.0"
#: Environment variable with names that the module ROOT has lost.
LOST_VARIABLE = "PLANTED_RELEASE_LOST"

#: Requires another package, warns, prints to standard output, knows no ``cppyy`` and no
#: ``std.exception``, raises C++ exceptions as another class, and compiles without a return value.
_MODULE = """
import os, sys, types, warnings
import cppjit

print("This is ROOT {release}, with cppjit")
warnings.warn("the engine has changed")
sys.path.insert(0, {packages!r})
del sys.modules["ROOT"]
import ROOT as _root

LOST = os.environ.get("{lost}", "").split()


class Changed:
    def __init__(self, name, original, lost=(), **changes):
        vars(self).update(_name=name, _original=original, _lost=lost, **changes)

    def __getattr__(self, name):
        if name in self._lost or f"{{self._name}}.{{name}}" in LOST:
            raise AttributeError(f"{{self._name}} has no {{name}}")
        return getattr(self._original, name)


class OtherExceptions(Changed):
    def __getattr__(self, name):
        original = super().__getattr__(name)
        if isinstance(original, type):
            return original

        def call(*arguments):
            try:
                return original(*arguments)
            except Exception as error:
                raise Exception(f"{{error.what()}} (C++ exception)") from None

        return call


class Release(types.ModuleType):
    gROOT = Changed(
        "gROOT", _root.gROOT, GetVersion=lambda: {release!r}, GetVersionInt=lambda: 64200
    )
    std = Changed("std", _root.std, ["exception"])

    def __getattr__(self, name):
        if name == "cppyy":
            raise AttributeError("ROOT has no cppyy")
        original = getattr(_root, name)
        if name == "treehammer":
            return OtherExceptions(name, original)
        if name == "gInterpreter" and "gInterpreter.Declare" not in LOST:
            return Changed(name, original, Declare=self._declare)
        return Changed(name, original) if name[0] == "g" and name[1].isupper() else original

    def __setattr__(self, name, value):
        setattr(_root, name, value)

    @staticmethod
    def _declare(code):
        if not _root.gInterpreter.Declare(code):
            raise SyntaxError("the code does not compile")


sys.modules["ROOT"] = Release("ROOT")
"""


def write_planted_wheels(folder: Path, environment: Path) -> None:
    """Write the release's wheel and that of its requirement, for ``pip --find-links``.

    Args:
        folder: folder of the wheels.
        environment: a cached release's, whose libraries the planted one uses.
    """
    packages = next((environment / "lib").glob("python3*/site-packages"))
    module = _MODULE.format(release=RELEASE, packages=str(packages), lost=LOST_VARIABLE)
    files = {"ROOT/__init__.py": module, "ROOT/lib64/libRootCore.so.6": "none reads it"}
    write_wheel(folder, "root", PACKAGE, files, "Requires-Dist: cppjit>=0.1\n")
    write_wheel(folder, "cppjit", "0.1.0", {"cppjit/__init__.py": ""})


def write_wheel(
    folder: Path, name: str, version: str, files: dict[str, str], requirement: str = ""
) -> None:
    """Write a wheel of some files into a folder."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirement}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def install_from(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Install releases from the wheels of a folder, with this environment's pip: a new one takes long."""

    def create_environment(installer: WheelInstaller) -> None:
        venv.create(installer.folder, symlinks=True)
        target = next(Path(installer.folder).glob("lib/python3*/site-packages"))
        for path in Path(sysconfig.get_path("purelib")).glob("pip*"):
            (target / path.name).symlink_to(path)

    patch.setattr(WheelInstaller, "create_environment", create_environment)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(folder))
