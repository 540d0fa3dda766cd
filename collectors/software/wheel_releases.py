"""Programs that are installed from PyPI: releases of ROOT, and clients of XRootD."""

from __future__ import annotations

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

#: Bytes on disk during an installation: 240 MB of archive, 670 MB of ROOT, Python and numpy.
NEEDED_BYTES = 1_050_000_000
#: The same for the XRootD client, aiohttp and Python.
XROOTD_NEEDED_BYTES = 200_000_000


@dataclass(frozen=True)
class Release:
    """One release of a program, installed in an environment of its own.

    Attributes:
        title: its name in messages, such as ``ROOT 6.40.00``.
        version: version that the program must report.
        package: package on PyPI.
        wheel: version of the package.
        sha256: of its wheel; '' to rely on the hash that the index states.
        others: further packages, as pip's requirements.
        dependencies: whether pip also installs what the further packages require.
        query: Python statements that print the version as the last word.
        needed_bytes: bytes on disk during the installation.
        size: sizes of download and installation, for people.
        remedy: what to do if it cannot be installed.
    """

    title: str
    version: str
    package: str
    wheel: str
    sha256: str
    others: Tuple[str, ...]
    dependencies: bool
    query: str
    needed_bytes: int
    size: str
    remedy: str

    @property
    def folder_name(self) -> str:
        """Name of the environment's folder."""
        return f"{self.package.lower()}-{self.version}"

    @property
    def marker(self) -> Dict[str, str]:
        """Content of the marker of a complete environment."""
        return {self.package.lower(): self.version, "wheel": self.wheel}


def find_release(request: SoftwareRequest) -> Release:
    """Return the release that a request of the provider ``wheel`` or ``xrootd`` names."""
    if request.provider == XROOTD:
        return make_xrootd_release(request.version)
    return make_root_release(request.version)


def make_root_release(version: str) -> Release:
    """Return a release of ROOT."""
    return Release(
        title=f"ROOT {version}",
        version=version,
        package="ROOT",
        wheel=WHEELS.get(version, ""),
        sha256=find_wheel_sha256(version),
        others=("numpy",),
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
        others=("aiohttp>=3.9",),
        dependencies=True,
        query=(
            "import aiohttp, importlib.metadata as m; from XRootD import client; "
            "print('version', m.version('xrootd'))"
        ),
        needed_bytes=XROOTD_NEEDED_BYTES,
        size="25 MB to fetch, 100 MB on disk",
        remedy="use 'xrootd:/FOLDER' with your own Python environment",
    )
