"""A CVMFS mount as sites have it, around the real ROOT of a wheel.

The layout is that of ``sft.cern.ch``: releases by package, version and platform; views that hold
nothing but links into them and a script that sets all of a view up.  The scripts do what the real
ones do, the unpleasant included: they find themselves by ``BASH_ARGV``, greet on standard output,
use variables that are not set, go on after commands that fail, and end with one.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = "sft.cern.ch"
VIEW = "LCG_106"
PLATFORM = "x86_64-el9-gcc13-opt"

COMPILER = """\
echo "compiler of $(basename "$(dirname "${BASH_SOURCE[0]}")")"
export COMPILER_OF_THE_VIEW=gcc
export PATH=$(dirname "${BASH_SOURCE[0]}")/bin:$PATH
"""

VIEW_SETUP = """\
SOURCE=${BASH_ARGV[0]}
thisdir=$(readlink -f "$(cd "$(dirname "${SOURCE}")"; pwd)")
compiler=${thisdir%/views/*}/releases/gcc/13.1.0/x86_64-el9/setup.sh
if [ "$COMPILER" != "native" ] && [ -e $compiler ]; then source $compiler; fi
LCG_VERSION=106; export LCG_VERSION
PATH=${thisdir}/bin:$PATH; export PATH
if [ -z "${LD_LIBRARY_PATH}" ]; then LD_LIBRARY_PATH=${thisdir}/lib
else LD_LIBRARY_PATH=${thisdir}/lib:$LD_LIBRARY_PATH; fi
export LD_LIBRARY_PATH
PYTHON_VERSION=`expr $(readlink ${thisdir}/bin/python) : '.*/Python/\\([0-9]\\.[0-9]\\+\\).*'`
PY_PATHS=${thisdir}/lib/python$PYTHON_VERSION/site-packages
if [ -z "${PYTHONPATH}" ]; then PYTHONPATH=${thisdir}/lib:$PY_PATHS
else PYTHONPATH=${thisdir}/lib:$PY_PATHS:$PYTHONPATH; fi
export PYTHONPATH
CMAKE_PREFIX_PATH=${thisdir}:$CMAKE_PREFIX_PATH; export CMAKE_PREFIX_PATH
CPLUS_INCLUDE_PATH=${thisdir}/include:$CPLUS_INCLUDE_PATH; export CPLUS_INCLUDE_PATH
std=$(cat $vc_home/logs/Vc*configure.cmake | grep -Eo "CMAKE_CXX_STANDARD=[0-9]+")
if [ -x $thisdir/bin/root ]; then
    ROOTSYS=$(dirname $(dirname $(readlink $thisdir/bin/root))); export ROOTSYS
    ROOT_INCLUDE_PATH=${thisdir}/include:$PYTHON_INCLUDE_PATH; export ROOT_INCLUDE_PATH
    export CLING_STANDARD_PCH=none
fi
if [ -x $thisdir/bin/python ]; then
    PYTHONHOME=$(dirname $(dirname $(readlink $thisdir/bin/python))); export PYTHONHOME
fi
if [ -x $thisdir/bin/gnuplot ]; then GNUPLOT_VERSION=$(gnuplot --version); export GNUPLOT_VERSION; fi
[ -d $thisdir/share/julia/environments ] && export JULIA_PROJECT=$thisdir/share/julia
"""

THISROOT = """\
SOURCE=${BASH_ARGV[0]}
ROOTSYS=$(cd "$(dirname "${SOURCE}")/.." && pwd -P); export ROOTSYS
PATH=$ROOTSYS/bin:$PATH; export PATH
PYTHONPATH=$ROOTSYS/lib${PYTHONPATH:+:$PYTHONPATH}; export PYTHONPATH
LD_LIBRARY_PATH=$ROOTSYS/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; export LD_LIBRARY_PATH
"""


def make(mount: Path, environment: Path, version: str) -> Path:
    """Build the tree below ``mount``.

    Args:
        mount: what ``/cvmfs`` would be.
        environment: of a wheel, whose ROOT is linked into the tree.
        version: of that ROOT.

    Returns:
        The folder of the view.
    """
    lcg = mount / REPOSITORY / "lcg"
    packages = next((environment / "lib").glob("python3*/site-packages"))
    root = _root(lcg / "releases" / "ROOT" / f"{version}-1a2b3" / PLATFORM, packages)
    short = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = lcg / "releases" / "Python" / f"{short}.0-4c5d6" / PLATFORM
    _link(python, (environment / "bin" / "python").resolve().parent.parent)
    _write(lcg / "releases" / "gcc" / "13.1.0" / "x86_64-el9" / "setup.sh", COMPILER)
    view = lcg / "views" / VIEW / PLATFORM
    for folder in ("bin", "lib", "include"):
        for item in (root / folder).iterdir():
            if item.name != "thisroot.sh":
                _link(view / folder / item.name, item)
    for name in ("python", "python3", f"python{short}"):
        _link(view / "bin" / name, python / "bin" / f"python{short}")
    for name in ("numpy", "numpy.libs"):
        _link(view / "lib" / f"python{short}" / "site-packages" / name, packages / name)
    _write(view / "setup.sh", VIEW_SETUP)
    _link(lcg / "app" / "releases" / "ROOT" / version / PLATFORM, root)
    return view


def _root(folder: Path, packages: Path) -> Path:
    """An installation as CMake makes it: ROOT's modules for Python lie beside its libraries."""
    for item in (packages / "ROOT").iterdir():
        if item.name not in ("bin", "lib"):
            _link(folder / item.name, item)
    modules = ("ROOT", "cppyy", "root.libs", "numpy", "numpy.libs")
    beside = [packages / name for name in modules]
    for item in [*(packages / "ROOT" / "lib").iterdir(), *beside, *packages.glob("libcppyy*")]:
        if not (folder / "lib" / item.name).is_symlink():
            _link(folder / "lib" / item.name, item)
    for item in (packages / "ROOT" / "bin").iterdir():
        _link(folder / "bin" / item.name, item)
    _write(folder / "bin" / "thisroot.sh", THISROOT)
    return folder


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
