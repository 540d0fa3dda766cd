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
