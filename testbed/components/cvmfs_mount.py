"""A simulated CVMFS mount with the ROOT installations of wheels, and the client of load tests.

The layout is that of ``sft.cern.ch``: releases by package, version and platform. Everything is a link
to the cached environments, which jobs see for that reason. ``thisroot.sh`` behaves like the real one:
it locates itself by ``BASH_ARGV``.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.software import providers
from treehammer.errors import TestbedError
from treehammer.testbed.component import Component, VisibleFolder, render_template
from treehammer.testbed.components import xrootd_storage
from treehammer.testbed.debian_packages import SUITE
from treehammer.testbed.workspace import ProgressCallback, Workspace

REPOSITORY = "sft.cern.ch"
#: CERN's name of a platform: architecture, system, compiler, build type.
PLATFORM = f"{platform.machine()}-linux-wheel-opt"
#: A site's ``software`` entry for releases on this mount.
AXIS_VALUE = f"cvmfs:ROOT/{{version}}/{PLATFORM}"

#: XRootD client of the shipped load tests.
CLIENT_VERSION = "6.2.1"

#: Folder of the libraries that a wheel of ROOT brings along.
_BUNDLED_LIBRARIES = "root.libs"


def install_release(mount: Path, environment: Path, version: str, build: str = PLATFORM) -> Path:
    """Add a release to the mount, which looks like an installation by CMake.

    ROOT's Python modules are beside its libraries.

    Args:
        mount: the folder that represents ``/cvmfs``.
        environment: a wheel's environment, whose ROOT is linked into the tree.
        version: of that ROOT.
        build: the platform in the paths.

    Returns:
        Its folder, for ``cvmfs:ROOT/VERSION/BUILD``.
    """
    folder = mount / REPOSITORY / "lcg" / "app" / "releases" / "ROOT" / version / build
    packages = next((environment / "lib").glob("python3*/site-packages"))
    python = find_interpreter(environment)
    for item in (packages / "ROOT").iterdir():
        if item.name not in ("bin", "lib"):
            make_link(folder / item.name, item)
    # All packages, since the engine below PyROOT differs between releases.
    libraries = [*packages.iterdir(), *python.parents[1].glob("lib/libpython3*.so*")]
    for item in [*(packages / "ROOT" / "lib").iterdir(), *libraries]:
        make_link(folder / "lib" / item.name, item)
    # The wheel's libraries look for this folder two above their own, which is that of their link.
    make_link(folder.parent / _BUNDLED_LIBRARIES, packages / _BUNDLED_LIBRARIES)
    for item in (packages / "ROOT" / "bin").iterdir():
        make_link(folder / "bin" / item.name, item)
    make_link(folder / "bin" / packages.parent.name, python)
    script = folder / "bin" / "thisroot.sh"
    script.unlink(missing_ok=True)  # the wheel's
    script.write_text(render_template("thisroot.sh.j2"), encoding="utf-8")
    return folder


def install_client(mount: Path, environment: Path, xrdcp: Path) -> Path:
    """Add the XRootD client to the mount, as a virtual environment with the copy program.

    Returns:
        Its folder, for ``xrootd:FOLDER``.
    """
    folder = client_folder(mount)
    for name in ("lib", "pyvenv.cfg"):
        make_link(folder / name, environment / name)
    make_link(folder / "bin" / "python", find_interpreter(environment))
    make_link(folder / "bin" / xrdcp.name, xrdcp)
    return folder


def find_interpreter(environment: Path) -> Path:
    """Return the Python that a virtual environment was created by."""
    return (environment / "bin" / "python").resolve()


def make_link(link: Path, target: Path) -> None:
    """Make a link and its folder; an existing link stays."""
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target)


class CvmfsMount(Component):
    """Software for a testbed's jobs, on a mount shared by all sites."""

    name = "cvmfs"

    def __init__(self, box: Workspace) -> None:
        super().__init__(box)
        self._environments: dict[str, Path] = {}
        self._servers = Path()

    def install(self, say: ProgressCallback) -> None:
        """Install the programs into the cache.

        Raises:
            TestbedError: one cannot be installed.
        """
        for request in (*(f"wheel:{r}" for r in self.box.releases), f"xrootd:{CLIENT_VERSION}"):
            try:
                software = providers.prepare_software(
                    providers.parse_software_request(request), self.box.software_dir, say
                )
            except ExecutionError as error:
                raise TestbedError(str(error), where=request) from error
            self._environments[request] = Path(software.location)
        self._servers = xrootd_storage.install_servers(SUITE, self.box.cache, say)

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return the mount and the targets of its links."""
        environments = [*self._environments.values()]
        pythons = [find_interpreter(environment).parents[1] for environment in environments]
        folders = [cvmfs_folder(self.box), *environments, *pythons, self._servers.parents[1]]
        return [VisibleFolder(folder, folder) for folder in dict.fromkeys(folders)]

    def configure(self) -> None:
        """Build the mount."""
        mount = cvmfs_folder(self.box)
        mount.mkdir(mode=0o755)
        for version in self.box.releases:
            install_release(mount, self._environments[f"wheel:{version}"], version)
        client = self._environments[f"xrootd:{CLIENT_VERSION}"]
        install_client(mount, client, self._servers / "xrdcp")


def cvmfs_folder(box: Workspace) -> Path:
    """Return the CVMFS folder of a testbed."""
    return box.folder / "cvmfs"


def client_folder(mount: Path) -> Path:
    """Return the folder of the XRootD client on a mount."""
    return mount / REPOSITORY / "lcg" / "releases" / "xrootd" / CLIENT_VERSION / PLATFORM
