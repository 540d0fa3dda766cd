"""Programs that are installed from PyPI: ROOT, the XRootD client, and packages for payloads."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Dict, Tuple

from ..job_spec import SoftwareRequest
from .wheel_pins import find_wheel_sha256

#: ROOT release -> version of the package ``ROOT`` on PyPI that contains it.
WHEELS: Dict[str, str] = {
    "6.37.01": "0.1a8",
    "6.38.00": "0.1a10",
    "6.39.01": "0.1a9",
    "6.40.00": "0.1a12",
}

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
        further_packages: more packages, as pip's requirements.
        dependencies: whether pip also installs the requirements of the further packages.
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
    dependencies: bool
    query: str
    needed_bytes: int
    size: str
    remedy: str
    suffix: str = ""

    @property
    def folder_name(self) -> str:
        """Name of the environment's folder."""
        return f"{self.package.lower()}-{self.version}{self.suffix}"

    @property
    def expected_version(self) -> str:
        """Version that the program must report; '' for a wheel whose release is not known."""
        return "" if self.package == "ROOT" and self.version not in WHEELS else self.version

    @property
    def marker(self) -> Dict[str, str]:
        """Content of the marker of a complete environment."""
        return {self.package.lower(): self.version, "wheel": self.wheel}


def find_release(request: SoftwareRequest) -> Release:
    """Return the release that a request of the provider ``wheel``, ``xrootd`` or ``pypi`` names."""
    if request.provider == PYPI:
        return make_package_release(request.request.partition(":")[2])
    if request.provider == XROOTD:
        return make_xrootd_release(request.version)
    return make_root_release(request.version)


def expected_root_version(request: SoftwareRequest) -> str:
    """Return the version that the requested ROOT must report; '' for any."""
    is_unknown = request.provider == "wheel" and request.version not in WHEELS
    return "" if is_unknown else request.version


def make_root_release(version: str) -> Release:
    """Return a release of ROOT."""
    return Release(
        title=f"ROOT {version}",
        version=version,
        package="ROOT",
        # A wheel whose release is not known yet is requested by the version of its package.
        wheel=WHEELS.get(version, version),
        sha256=find_wheel_sha256(version),
        further_packages=("numpy",),
        dependencies=False,
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
        dependencies=True,
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
        dependencies=True,
        query=f"import importlib.metadata as m; print('version', m.version({name!r}))",
        needed_bytes=PACKAGE_NEEDED_BYTES,
        size="with all that it requires",
        remedy="use 'build:/FOLDER' with your own Python environment",
        suffix="-" + hashlib.sha256(" ".join(further).encode()).hexdigest()[:8] if further else "",
    )
