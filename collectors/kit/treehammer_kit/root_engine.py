"""Untimed preparation of ROOT in this process: loading, extensions, warm-up, compilation.

Extensions are libraries with dictionaries and Python modules that a test loads before it opens a file.
Under callgrind, the loop's instructions are counted by requests of valgrind's own header.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from .loop_libraries import CompiledRoot, LoopLibraries, LoopSource, mark_lines
from .ntuple_passes import NTuplePasses, summarize_ntuple_passes
from .pass_summary import PassRead, summarize_tree_passes
from .payload_task import RNTUPLE, TTREE, CountingTask, PayloadError, PayloadTask
from .pyroot import check_pyroot, declare, make_unsupported_error
from .read_passes import ReadPasses

#: Earlier releases have RNTupleReader in ROOT::Experimental.
_FIRST_WITH_NTUPLES = 63600
#: Environment variable with the number of an RNTuple's clusters that RDataFrame reads at once.
_DATAFRAME_CLUSTERS = "ROOT_RNTUPLE_CLUSTERBUNCHSIZE"

_HERE = os.path.dirname(os.path.abspath(__file__))


def load_root(libraries: Optional[LoopLibraries] = None) -> Tuple[Any, Dict[str, Any]]:
    """Load ROOT; return the module and the time it took, by catalogue name.

    Args:
        libraries: the kit's library, which takes the place of PyROOT and the interpreter.

    Raises:
        PayloadError: ROOT cannot be loaded, or its PyROOT is not supported.
    """
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    try:
        root = _load_compiled_root(libraries) if libraries else _import_root()
    except Exception as error:
        message = f"cannot import ROOT: {error}"
        raise PayloadError("software-setup", "broken", "import", message) from error
    after = resource.getrusage(resource.RUSAGE_SELF)
    if not libraries:
        check_pyroot(root)
    return root, {
        "import_wall_s": time.monotonic() - wall,
        "import_user_s": after.ru_utime - before.ru_utime,
        "import_sys_s": after.ru_stime - before.ru_stime,
    }


def _load_compiled_root(libraries: LoopLibraries) -> CompiledRoot:
    root = CompiledRoot(libraries.kit, libraries.loop)
    root.gROOT.SetBatch()
    configure_crash_handling()
    root.treehammer.PrintFramesOfCrashes()
    return root


def _import_root() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheels announce that they are pre-releases
        import ROOT

        # ROOT 6.40 is loaded lazily, at the first use of an attribute.
        ROOT.gROOT.SetBatch(True)
        ROOT.gErrorIgnoreLevel = ROOT.kWarning
        configure_crash_handling()
    return ROOT


def configure_crash_handling() -> None:
    """Make a crash end the process by its signal, after a Python traceback.

    ROOT's own handlers start a debugger, which takes long on a node, and exit with a code that
    elsewhere means another signal. The functions that are called on exit wait for a lock forever
    where the C library has aborted the process for a damaged heap.
    """
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()


def compile_kit(root: Any) -> None:
    """Compile the kit's main header; from now on a crash prints its C++ frames.

    Raises:
        PayloadError: this ROOT cannot compile it, or its PyROOT is not supported.
    """
    root.gSystem.Load("libTreePlayer")  # else cling searches all libraries for its symbols
    compile_header(root, "kit.hpp")
    try:
        root.treehammer.PrintFramesOfCrashes()
    except AttributeError as error:
        raise make_unsupported_error("it does not show what it compiled") from error


def compile_header(root: Any, name: str) -> None:
    """Compile one of the kit's headers.

    Raises:
        PayloadError: this ROOT cannot compile it.
    """
    path = os.path.join(_HERE, name)
    if not declare(root, f'#include "{path}"'):
        raise PayloadError("payload", "compile", "compile", f"this ROOT cannot compile {path}")


def compile_ntuple_header(root: Any, name: str) -> None:
    """Compile one of the kit's headers for RNTuples.

    Raises:
        PayloadError: this ROOT has no supported RNTuple reader, or cannot compile the header.
    """
    if int(root.gROOT.GetVersionInt()) < _FIRST_WITH_NTUPLES:
        version = root.gROOT.GetVersion()
        message = (
            f"RNTuples are not supported with ROOT {version}: ROOT::RNTupleReader exists since 6.36"
        )
        raise PayloadError("software-setup", "not-supported", "compile", message)
    root.gSystem.Load("libROOTNTuple")  # as in compile_kit
    compile_header(root, name)


@dataclass(frozen=True)
class FormatReader:
    """Implementation of one format: its passes, their summary, and the C++ names."""

    passes: Callable[[Any, PayloadTask], ReadPasses]
    summarize: Callable[[Sequence[PassRead]], Dict[str, Any]]
    write_warm_up: str
    loop_name: str
    loop_argument: str


_FORMATS = {
    TTREE: FormatReader(ReadPasses, summarize_tree_passes, "WriteWarmUpFile", "TheLoop", "Pass"),
    RNTUPLE: FormatReader(
        NTuplePasses, summarize_ntuple_passes, "WriteWarmUpNTuple", "TheNTupleLoop", "NTuplePass"
    ),
}


def set_prefetching(root: Any, task: PayloadTask) -> None:
    """Set how far a TTreeCache or RDataFrame reads ahead if requested, before any file is opened.

    An RNTupleReader gets its number of clusters when it opens an RNTuple.

    Raises:
        PayloadError: the format has no such setting.
    """
    if not task.prefetch:
        return
    problem = ""
    if task.format == RNTUPLE and task.cache_bytes == 0:
        problem = "reads clusters ahead into the cluster cache, which cache_mb = 0 turns off"
    if task.format != RNTUPLE and task.prefetch > 1:
        problem = "is for RNTuples: a TTreeCache's prefetching is off (0) or on (1)"
    if problem:
        raise PayloadError("payload", "format", "setup", f"prefetch = {task.prefetch} {problem}")
    if task.format == RNTUPLE:
        root.gSystem.Setenv(_DATAFRAME_CLUSTERS, str(task.prefetch))
    else:
        root.gEnv.SetValue("TFile.AsyncPrefetching", 1)


def select_reader(root: Any, task: PayloadTask) -> FormatReader:
    """Select the reader of the task's format, and compile its headers.

    Raises:
        PayloadError: this ROOT cannot read the format, or cannot compile the headers, or the task
            needs several threads.
    """
    if task.threads > 1:
        message = (
            f"threads = {task.threads}: this payload's loop reads with one thread; "
            "treehammer_columns.run_dataframe() reads with several"
        )
        raise PayloadError("payload", "format", "setup", message)
    set_prefetching(root, task)
    if not isinstance(root, CompiledRoot):
        compile_kit(root)
        if task.format == RNTUPLE:
            compile_ntuple_header(root, "ntuple_reader.hpp")
    return _FORMATS[task.format]


def describe_loop(task: PayloadTask, code: str, function: str) -> LoopSource:
    """Describe the loop that a payload has for the task's format."""
    argument = _FORMATS[task.format].loop_argument
    header = task.counting.header if task.counting else ""
    is_ntuple = task.format == RNTUPLE
    return LoopSource(code, function, argument, is_ntuple, task.folder, callgrind=header)


def compile_loop(root: Any, code: str, function: str, format_: FormatReader) -> None:
    """Compile the payload's loop, or load it, and install it as the timed loop.

    Raises:
        PayloadError: the code does not compile, or does not define ``function``.
    """
    if isinstance(root, CompiledRoot):
        root.load_loop(format_.loop_name)
        return
    signature = f"void {function}(treehammer::{format_.loop_argument} &pass)"
    if not code:
        message = f"the payload does not support this format: it has no '{signature}'"
        raise PayloadError("payload", "format", "compile", message)
    if not declare_payload_code(root, code):
        raise PayloadError("payload", "compile", "compile", "the payload's loop does not compile")
    # Taking the address makes the JIT emit the function now, before anything is timed.
    loop = f"treehammer::{format_.loop_name}()"
    if not declare(root, f"const bool treehammer_bound = ({loop} = &{function}, true);"):
        message = f"the payload's code must define '{signature}'"
        raise PayloadError("payload", "compile", "compile", message)


def declare_payload_code(root: Any, code: str) -> bool:
    """Compile C++ of the payload with optimization; return whether it compiles.

    The compiler's messages name the line of the script that contains the code.
    """
    return declare(root, f"#pragma cling optimize(2)\n{mark_lines(code)}")


def open_hardware_counters(root: Any) -> Dict[str, str]:
    """Open the processor's counters; return the reason for missing ones by catalogue name."""
    problems = str(root.treehammer.OpenHardwareCounters())
    return {"hw_counters_missing": problems} if problems else {}


def warm_up(root: Any, task: PayloadTask, format_: FormatReader) -> None:
    """Read a small file with the usual kinds of branches, before anything is timed.

    ROOT loads its libraries and the JIT emits every function of the read path, so that a cold
    execution measures storage alone.

    Raises:
        PayloadError: the small file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="treehammer-warm-up-") as folder:
        path = os.path.join(folder, "warm-up.root")
        getattr(root.treehammer, format_.write_warm_up)(path, "warm")
        small = replace(
            task, urls=[path], adler32s=[""], tree="warm", branches=1.0, events=0.5, settings={}
        )
        format_.passes(root, small).run_pass()


def load_extensions(
    root: Any, libraries: Sequence[str], imports: Sequence[str], folder: str
) -> None:
    """Load libraries, then import modules, in the order of test.toml.

    Args:
        root: the module ROOT.
        libraries: paths of shared libraries, absolute or relative to ``folder``.
        imports: names of Python modules, in ``folder`` or in the Python of ROOT.
        folder: the payload's folder.

    Raises:
        PayloadError: one is missing or cannot be loaded.
    """
    for name in libraries:
        if problem := load_library(root, os.path.join(folder, name)):
            message = f"load = [{name!r}] of test.toml: {problem}"
            raise PayloadError("software-setup", "library", "import", message)
    if imports and folder not in sys.path:
        sys.path.insert(1, folder)
    for name in imports:
        try:
            importlib.import_module(name)
        except Exception as error:
            message = (
                f"imports = [{name!r}] of test.toml: {type(error).__name__}: {error}. Name the module in "
                f"[test] files, or install it for {sys.executable}."
            )
            raise PayloadError("software-setup", "library", "import", message) from error


def load_library(root: Any, path: str) -> str:
    """Load a shared library with ROOT; return the problem, '' for success."""
    if not os.path.isfile(path):
        return f"there is no file {path} on this node. Put the library into the test's folder, or name a path that all nodes have."
    if root.gSystem.Load(path) >= 0:
        return ""
    try:
        ctypes.CDLL(path)
        reason = "ROOT refuses it (see log)"
    except OSError as error:
        reason = str(error)
    version = root.gROOT.GetVersion()
    return f"{reason}. Build the library with ROOT {version}, and name the libraries that it needs before it."


_REQUESTS = """
#include "{header}"
namespace treehammer {{
inline void StartCounting() {{ CALLGRIND_START_INSTRUMENTATION; }}
inline void StopCounting() {{ CALLGRIND_STOP_INSTRUMENTATION; }}
inline bool RunsUnderValgrind() {{ return RUNNING_ON_VALGRIND > 0; }}
inline void CountLoop() {{ TheLoopHooks() = {{StartCounting, StopCounting}}; }}
}}
"""


def compile_requests(root: Any, counting: CountingTask) -> None:
    """Compile the requests that start and stop the count, which the kit's library has already.

    Raises:
        PayloadError: this ROOT cannot compile them, or the process does not run under valgrind.
    """
    requests = _REQUESTS.format(header=counting.header)
    if not (isinstance(root, CompiledRoot) or declare(root, requests)):
        message = f"this ROOT cannot compile {counting.header}"
        raise PayloadError("payload", "compile", "compile", message)
    if not root.treehammer.RunsUnderValgrind():
        message = "instructions are counted only under valgrind"
        raise PayloadError("payload", "no-valgrind", "compile", message)
