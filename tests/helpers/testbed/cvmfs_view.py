"""A view of releases on a simulated CVMFS mount, with a set-up script like those of ``sft.cern.ch``.

The script has the flaws of the real ones: it locates itself by ``BASH_ARGV``, prints to standard
output, uses unset variables, continues after failed commands, and ends with one.
"""

from __future__ import annotations

from pathlib import Path

from treehammer.testbed.components.cvmfs_mount import (
    REPOSITORY,
    find_interpreter,
    install_release,
    make_link,
)

VIEW = "LCG_106"
_COMPILER_SCRIPT = """\
echo "compiler of $(basename "$(dirname "${BASH_SOURCE[0]}")")"
export COMPILER_OF_THE_VIEW=gcc
export PATH=$(dirname "${BASH_SOURCE[0]}")/bin:$PATH
"""
_VIEW_SCRIPT = r"""
SOURCE=${BASH_ARGV[0]}
thisdir=$(readlink -f "$(cd "$(dirname "${SOURCE}")"; pwd)")
compiler=${thisdir%/views/*}/releases/gcc/13.1.0/x86_64-el9/setup.sh
if [ "$COMPILER" != "native" ] && [ -e $compiler ]; then source $compiler; fi
LCG_VERSION=106; export LCG_VERSION
PATH=${thisdir}/bin:$PATH; export PATH
if [ -z "${LD_LIBRARY_PATH}" ]; then LD_LIBRARY_PATH=${thisdir}/lib
else LD_LIBRARY_PATH=${thisdir}/lib:$LD_LIBRARY_PATH; fi
export LD_LIBRARY_PATH
PYTHON_VERSION=`expr $(readlink ${thisdir}/bin/python) : '.*/Python/\([0-9]\.[0-9]\+\).*'`
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


def install_view(mount: Path, environment: Path, version: str, build: str) -> Path:
    """Add a release of a wheel's environment and a view of it to the mount.

    Returns:
        The folder of the view, for ``cvmfs:VIEW/BUILD``.
    """
    root = install_release(mount, environment, version, build)
    lcg = mount / REPOSITORY / "lcg"
    packages = next((environment / "lib").glob("python3*/site-packages"))
    name = packages.parent.name
    python = lcg / "releases" / "Python" / f"{name.removeprefix('python')}.0-4c5d6" / build
    make_link(python, find_interpreter(environment).parents[1])
    compiler = lcg / "releases" / "gcc" / "13.1.0" / "x86_64-el9" / "setup.sh"
    compiler.parent.mkdir(parents=True)
    compiler.write_text(_COMPILER_SCRIPT)
    view = lcg / "views" / VIEW / build
    for folder in ("bin", "lib", "include"):
        for item in (root / folder).iterdir():
            if item.name not in ("thisroot.sh", name):
                make_link(view / folder / item.name, item)
    for link in ("python", "python3", name):
        make_link(view / "bin" / link, python / "bin" / name)
    for package in ("numpy", "numpy.libs"):
        make_link(view / "lib" / name / "site-packages" / package, packages / package)
    make_link(view.parent / "root.libs", packages / "root.libs")  # as beside the release
    (view / "setup.sh").write_text(_VIEW_SCRIPT.lstrip())
    return view
