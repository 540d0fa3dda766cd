"""Programs from PyPI: releases with their checksums, and cached environments with one each.

They are ROOT, the XRootD client, and packages for payloads.  Only the submitting side installs, never
a job; a damaged environment is never used.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import platform
import re
import sys
from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from ..job_spec import SoftwareRequest
from ..shared_files import write_atomically
from .setup_commands import drop_foreign_root, raise_setup_error, run_tool

#: Architecture of the wheels whose hashes are listed, as ``uname -m`` prints it.
HASHED_MACHINE = "x86_64"
#: SHA-256 of ROOT's wheels on PyPI for Linux on x86_64 (``manylinux_2_28``): release -> tag of the
#: Python version -> hash.  PyPI never replaces a published file, so these never change.  For an
#: interpreter that is not listed, only the hash stated by the index is checked.
WHEEL_SHA256: Dict[str, Dict[str, str]] = {
    "6.37.01": {
        "cp39": "77d1ce628643cd3cfef2b562116d5a4a5ed127aa8fa3274ed1204871e370e5e1",
        "cp310": "731cb5f7fb2ac677a058616c885ede5c9ec2c1f5a6baf8baebe252d9a1fc1dfd",
        "cp311": "f13566b84a1e76c16e8a0c82dd3e5ce5087df20cba8e5f122d3455631000e74a",
        "cp312": "8b232de53ef128078768094dde56d5a1e5f6b29f2b02f1589967f51bf9bc58f1",
        "cp313": "954cfdf214fc3b9c12b076b9de809cf3523ec0a4968ec944e9130b51f063e7c7",
    },
    "6.38.00": {
        "cp39": "f4ae80c9abc8cfc1010cd59235cb0e43a5e30a77f5063431a452d38ca3b72c74",
        "cp310": "b95f986cfb65343478dcf4330f14700013d5aac3e13ad01109e2abe2b20abaa4",
        "cp311": "0ca285327126f2def3c68f69ad618961c37f9a5b42e690e25b0d2bbeeef3dad4",
        "cp312": "9f3adfd54c324cdf46013094f6a9e38d259a61f3c485853ce5879d55c0f5c7b2",
        "cp313": "b301b705fbd35209d5e3014e63d6c218fd70f63e2e4d45d3a3cd2a6deb3728ac",
        "cp314": "13589051ce1542ba002e9c797bb91aba96dffe69523bb8afe405fb499c87257c",
    },
    "6.39.01": {
        "cp39": "bb0daf3a772d41a073e27e22528e4748054adffabdfa3e64511d1a0f51ec160d",
        "cp310": "433df186e1ba992d92a839c7636844ec91192e64413e6aee80b7c32e5e2ad350",
        "cp311": "25a5c1a4f41a8ccfd389ab997496275b434c999b74b1a9f9c3de31e1c91813cf",
        "cp312": "5b4cae5b0fa49f31cb230d6c64cc7ae8338addd88176743610c4ee651a742aa7",
        "cp313": "7c2c93f4ca730aba718c4204717ff563267841d332b9830690476db7af0b0c4e",
        "cp314": "22553fc094bb186a6712c501c880a6a526f2ebae40e7fdb59b1aa7f591b31c9f",
    },
    "6.40.00": {
        "cp310": "9906c131dadb71d137c77a274d11213bde88fe8c2cc81a1ce42c2486026a062a",
        "cp311": "3aec82a04f1464f663f15dd895825068f5842edbde867d8fb3f15d04d66ffad7",
        "cp312": "7dbebe69a8449e60da2c7c4977d2fd377e6f86277d7e22f0190ba2d5e17c9cfb",
        "cp313": "d0d59b993b563ac4db2cc4de7950a3f346a06ec207298f9a0b222a97f1a024ca",
        "cp314": "0bffbb476896bf7a3eef680bae86e13120da9956d859b4207c7b5a056e496d66",
    },
}


def find_wheel_sha256(version: str) -> str:
    """Find the SHA-256 of a release's wheel for this interpreter; '' when unknown."""
    if (sys.platform, platform.machine()) != ("linux", HASHED_MACHINE):
        return ""
    return WHEEL_SHA256.get(version, {}).get(f"cp{sys.version_info[0]}{sys.version_info[1]}", "")


#: ROOT release -> version of the package ``ROOT`` on PyPI that contains it.
WHEELS: Dict[str, str] = {
    "6.37.01": "0.1a8",
    "6.38.00": "0.1a10",
    "6.39.01": "0.1a9",
    "6.40.00": "0.1a12",
}
#: First cycle whose package may have the release's own version: 6.42.0 contains 6.42.00.
_FIRST_CYCLE_BY_NAME = (6, 42)
_RELEASE = re.compile(r"([0-9]+)\.([0-9]{2})\.([0-9]{2})")
_PACKAGE_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.([0-9]+)")


def find_wheel(release: str) -> str:
    """Find the version of the package ROOT that contains a release; '' if that is not known."""
    numbers = _parse_cycle_by_name(_RELEASE, release)
    return WHEELS.get(release, ".".join(map(str, numbers)))


def name_release(wheel: str) -> str:
    """Name the release that a version of the package ROOT contains; '' if that is not known."""
    numbers = _parse_cycle_by_name(_PACKAGE_VERSION, wheel)
    release = "{}.{:02}.{:02}".format(*numbers) if numbers else ""
    return next((name for name, version in WHEELS.items() if version == wheel), release)


def _parse_cycle_by_name(pattern: re.Pattern[str], version: str) -> Tuple[int, ...]:
    match = pattern.fullmatch(version)
    numbers = tuple(map(int, match.groups())) if match else ()
    return numbers if numbers[:2] >= _FIRST_CYCLE_BY_NAME else ()


#: Provider of the XRootD client and aiohttp, for load tests.
XROOTD = "xrootd"
#: Provider of any package from PyPI, for payloads in Python.
PYPI = "pypi"

#: Bytes on disk during an installation: 240 MB of archive, 670 MB of ROOT, Python and numpy.
NEEDED_BYTES = 1_050_000_000
#: The same for the XRootD client, aiohttp and Python.
XROOTD_NEEDED_BYTES = 200_000_000
#: The same for a package with its requirements.
PACKAGE_NEEDED_BYTES = 600_000_000

_PINNED_PACKAGE = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)"
)


@dataclass(frozen=True)
class Release:
    """One release of a program, installed in an environment of its own.

    Attributes:
        title: its name in messages, such as ``ROOT 6.40.00``.
        version: version that the program must report.
        package: package on PyPI.
        wheel: version of the package.
        sha256: of its wheel; '' to rely on the hash that the index states.
        further_packages: more packages, as pip's requirements, with all that they require.
        query: Python statements that print the version as the last word.
        needed_bytes: bytes on disk during the installation.
        size: sizes of download and installation, for people.
        remedy: advice if it cannot be installed.
        suffix: end of the folder's name that distinguishes environments of one version.
    """

    title: str
    version: str
    package: str
    wheel: str
    sha256: str
    further_packages: Tuple[str, ...]
    query: str
    needed_bytes: int
    size: str
    remedy: str
    suffix: str = ""

    @property
    def folder_name(self) -> str:
        """Name of the environment's folder; machines of several architectures may share a disk."""
        return f"{self.package.lower()}-{self.version}{self.suffix}{machine_suffix()}"

    @property
    def expected_version(self) -> str:
        """Version that the program must report; '' for a wheel whose release is not known."""
        return "" if self.package == "ROOT" and not find_wheel(self.version) else self.version

    @property
    def marker(self) -> Dict[str, str]:
        """Content of the marker of a complete environment."""
        return {self.package.lower(): self.version, "wheel": self.wheel}


def machine_suffix() -> str:
    """Return the end of folder names on this architecture; '' on x86_64."""
    machine = platform.machine()
    return "" if machine == HASHED_MACHINE else f"-{machine}"


def describe_python() -> str:
    """Describe what an index selects wheels by."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"


def find_release(request: SoftwareRequest) -> Release:
    """Return the release that a request of the provider ``wheel``, ``xrootd`` or ``pypi`` names."""
    if request.provider == PYPI:
        return make_package_release(request.request.partition(":")[2])
    if request.provider == XROOTD:
        return make_xrootd_release(request.version)
    return make_root_release(request.version)


def expected_root_version(request: SoftwareRequest) -> str:
    """Return the version that the requested ROOT must report; '' for any."""
    is_unknown = request.provider == "wheel" and not find_wheel(request.version)
    return "" if is_unknown else request.version


def make_root_release(version: str) -> Release:
    """Return a release of ROOT."""
    # A wheel whose release is not known yet is requested by the version of its package.
    wheel = find_wheel(version) or version
    return Release(
        title=f"ROOT {version}",
        version=version,
        package="ROOT",
        wheel=wheel,
        sha256=find_wheel_sha256(version),
        # The wheel again, for all that it requires: a known hash is checked without requirements.
        further_packages=(f"ROOT=={wheel}",),
        query="import ROOT; print('version', ROOT.gROOT.GetVersion())",
        needed_bytes=NEEDED_BYTES,
        size="240 MB to fetch, 670 MB on disk",
        remedy="use 'path:' with your own ROOT",
    )


def make_xrootd_release(version: str) -> Release:
    """Return a release of the XRootD client."""
    return Release(
        title=f"XRootD {version}",
        version=version,
        package="xrootd",
        wheel=version,
        sha256="",
        further_packages=("aiohttp>=3.9",),
        query=(
            "import aiohttp, importlib.metadata as m; from XRootD import client; "
            "print('version', m.version('xrootd'))"
        ),
        needed_bytes=XROOTD_NEEDED_BYTES,
        size="25 MB to fetch, 100 MB on disk",
        remedy="use 'xrootd:/FOLDER' with your own Python environment",
    )


def make_package_release(requirements: str) -> Release:
    """Return a release of a package, with the packages that it requires.

    Args:
        requirements: ``NAME==VERSION``, and further requirements of pip after spaces.

    Raises:
        ValueError: the first requirement does not name one version.
    """
    first, *further = requirements.split()
    match = _PINNED_PACKAGE.fullmatch(first)
    if match is None or any(requirement.startswith("-") for requirement in further):
        raise ValueError(
            f"{requirements!r} is not 'NAME==VERSION', followed by further requirements at most"
        )
    name, version = match["name"], match["version"]
    return Release(
        title=f"{name} {version}",
        version=version,
        package=name,
        wheel=version,
        sha256="",
        # Last, so that it finds the versions of the others installed.
        further_packages=(*further, first),
        query=f"import importlib.metadata as m; print('version', m.version({name!r}))",
        needed_bytes=PACKAGE_NEEDED_BYTES,
        size="with all that it requires",
        remedy="use 'build:/FOLDER' with your own Python environment",
        suffix="-" + hashlib.sha256(" ".join(further).encode()).hexdigest()[:8] if further else "",
    )


MARKER_NAME = ".treehammer.json"

#: Compiled code and the interpreter's dictionaries: some 220 of a wheel's 4700 files, checked in a
#: few milliseconds.  (Byte code is regenerated at installation and never matches.)
_CHECKED_SUFFIXES = (".so", ".pcm", ".pch", ".rootmap")


def environment_folder(release: Release, software_dir: str) -> str:
    """Return the folder of a release's environment, installed or not."""
    return os.path.abspath(os.path.join(software_dir, release.folder_name))


def environment_python(folder: str) -> str:
    """Return the path of an environment's interpreter."""
    return os.path.join(folder, "bin", "python")


def write_marker(folder: str, release: Release) -> None:
    """Mark an environment as complete, the last step of its installation."""
    write_atomically(os.path.join(folder, MARKER_NAME), json.dumps(release.marker))


def is_installed(folder: str, release: Release) -> bool:
    """Return whether the environment was completed and its interpreter still exists."""
    try:
        with open(os.path.join(folder, MARKER_NAME), encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return False
    # The interpreter is a link to the Python that created the environment, which can disappear.
    return document == release.marker and os.access(environment_python(folder), os.X_OK)


def find_denied_python(folder: str) -> str:
    """Return the target of an environment's interpreter that this user may not run; '' otherwise."""
    python = environment_python(folder)
    try:
        os.stat(python)
    except PermissionError:
        return os.path.realpath(python)
    except OSError:  # it is gone
        return ""
    return "" if os.access(python, os.X_OK) else os.path.realpath(python)


def find_damage(folder: str, release: Release) -> str:
    """Describe the first installed file that is missing or changed; '' for none.

    Compares sizes with the wheels' own lists of files: hashing 670 MB before each job would take
    longer than many jobs.
    """
    pattern = os.path.join(folder, "lib", "python3*", "site-packages", "*.dist-info", "RECORD")
    records = sorted(glob.glob(pattern))
    # Folders of wheels are named with underscores.
    package = re.sub(r"[-_.]+", "_", release.package.lower())
    name = f"{package}-{release.wheel}.dist-info"
    if name not in [os.path.basename(os.path.dirname(record)).lower() for record in records]:
        return "the list of installed files is missing"
    return next(filter(None, map(_find_damaged_file, records)), "")


def _find_damaged_file(record: str) -> str:
    try:
        with open(record, encoding="utf-8", newline="") as stream:
            lines = [line for line in stream if any(part in line for part in _CHECKED_SUFFIXES)]
    except (OSError, ValueError) as error:
        return f"the list of installed files cannot be read: {error}"
    packages = os.path.dirname(os.path.dirname(record))
    for path, _, size in csv.reader(lines):
        try:
            installed = os.stat(os.path.join(packages, path)).st_size
        except OSError as error:
            return f"{path}: {error.strerror}"
        if size and installed != int(size):
            return f"{path} has {installed} bytes instead of {size}"
    return ""


def is_usable(folder: str, release: Release) -> bool:
    """Return whether a job can use the environment."""
    return is_installed(folder, release) and not find_damage(folder, release)


def setup_wheel(request: SoftwareRequest, base: Mapping[str, str]) -> Tuple[str, Dict[str, str]]:
    """Set up an installed release; return interpreter and environment."""
    folder, release = request.location, find_release(request)
    python = environment_python(folder)
    if not is_installed(folder, release):
        raise_setup_error(
            "missing",
            f"{release.title} in {folder} needs {os.path.realpath(python)}, which this node lacks"
            if os.path.islink(python) and not os.access(python, os.X_OK)
            else f"{release.title} is not installed in {folder or 'any folder'}; "
            "planning installs it, a job never does",
        )
    damage = find_damage(folder, release)
    if damage:
        raise_setup_error(
            "broken",
            f"{release.title} in {folder} is damaged ({damage}); submit again: planning "
            "reinstalls it, a job never does",
        )
    env = drop_foreign_root(base)
    query = "import sysconfig; print(sysconfig.get_path('platlib'))"
    packages = run_tool([python, "-c", query], env, f"the Python of {folder}").strip()
    folders = [os.path.dirname(python), os.path.join(packages, "ROOT", "bin"), env.get("PATH", "")]
    env["PATH"] = os.pathsep.join(folder for folder in folders if folder)
    return python, {**env, "VIRTUAL_ENV": folder}
