"""ROOT in this process: loaded, its JIT warmed, the payload's loop compiled; all untimed."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import tempfile
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Sequence, Tuple

from .ntuple_passes import NTuplePasses
from .ntuple_passes import summarize_ntuple_passes as ntuple_values_of
from .pass_summary import PassRead, summarize_tree_passes
from .payload_task import RNTUPLE, TTREE, PayloadError, PayloadTask
from .read_passes import ReadPasses

#: Before, RNTupleReader and what belongs to it stood in ROOT::Experimental.
_FIRST_WITH_NTUPLES = 63600

_HERE = os.path.dirname(os.path.abspath(__file__))


def load_root() -> Tuple[Any, Dict[str, Any]]:
    """Import ROOT; returns the module and how long it took.

    Raises:
        PayloadError: it cannot be imported.
    """
    wall, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheels announce that they are pre-releases
            import ROOT

            # 6.40 loads itself at the first use of an attribute.
            ROOT.gROOT.SetBatch(True)
            ROOT.gErrorIgnoreLevel = ROOT.kWarning
            _configure_crash_handling()
    except ImportError as error:
        raise PayloadError(
            "software-setup", "broken", "import", f"cannot import ROOT: {error}"
        ) from error
    after = resource.getrusage(resource.RUSAGE_SELF)
    return ROOT, {
        "import_wall_s": time.monotonic() - wall,
        "import_user_s": after.ru_utime - before.ru_utime,
        "import_sys_s": after.ru_stime - before.ru_stime,
    }


def _configure_crash_handling() -> None:
    """Let a crash end the process by its signal, after Python said where it was.

    ROOT's own handlers call a debugger, which takes long on a node, and leave with an exit code that
    means another signal to everybody else.
    """
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()


def compile_header(root: Any, name: str) -> None:
    """Compile one of the kit's headers.

    Raises:
        PayloadError: this ROOT does not take it.
    """
    path = os.path.join(_HERE, name)
    if not root.gInterpreter.Declare(f'#include "{path}"'):
        raise PayloadError("payload", "compile", "compile", f"this ROOT cannot compile {path}")


def compile_ntuple_header(root: Any, name: str) -> None:
    """Compile one of the headers that read RNTuples.

    Raises:
        PayloadError: this ROOT has no reader of them that we support, or does not take the header.
    """
    found = int(root.gROOT.GetVersionInt())
    if found < _FIRST_WITH_NTUPLES:
        version = root.gROOT.GetVersion()
        raise PayloadError(
            "software-setup",
            "not-supported",
            "compile",
            f"RNTuples are not supported with ROOT {version}: its reader is not ROOT::RNTupleReader "
            "yet, which ROOT has from 6.36 on",
        )
    compile_header(root, name)


@dataclass(frozen=True)
class FormatReader:
    """How files of one format are read: the passes, and the C++ names that stand for them."""

    passes: Callable[[Any, PayloadTask], ReadPasses]
    summarize: Callable[[Sequence[PassRead]], Dict[str, Any]]
    write_warm_up: str
    loop_name: str
    loop_argument: str


_FORMATS = {
    TTREE: FormatReader(ReadPasses, summarize_tree_passes, "WriteWarmUpFile", "TheLoop", "Pass"),
    RNTUPLE: FormatReader(
        NTuplePasses, ntuple_values_of, "WriteWarmUpNTuple", "TheNTupleLoop", "NTuplePass"
    ),
}


def select_reader(root: Any, task: PayloadTask) -> FormatReader:
    """What reads the task's files, with its headers compiled.

    Raises:
        PayloadError: this ROOT cannot read them, or does not take the headers.
    """
    compile_header(root, "kit.hpp")
    if task.format == RNTUPLE:
        compile_ntuple_header(root, "ntuple_reader.hpp")
    return _FORMATS[task.format]


def compile_loop(root: Any, code: str, function: str, format_: FormatReader) -> None:
    """Compile the payload's loop and make it the one that is run.

    Raises:
        PayloadError: it does not compile, or does not define ``function``.
    """
    wanted = f"void {function}(treehammer::{format_.loop_argument} &pass)"
    if not code:
        raise PayloadError(
            "payload", "format", "compile", f"the payload reads no such files: it has no '{wanted}'"
        )
    if not root.gInterpreter.Declare("#pragma cling optimize(2)\n" + code):
        raise PayloadError(
            "payload", "compile", "compile", "the payload's loop does not compile (see log)"
        )
    # Taking the address makes the JIT emit the function now, before anything is timed.
    if not root.gInterpreter.Declare(
        f"const bool treehammer_bound = (treehammer::{format_.loop_name}() = &{function}, true);"
    ):
        raise PayloadError(
            "payload", "compile", "compile", f"the payload's code must define '{wanted}'"
        )


def warm_up(root: Any, task: PayloadTask, format_: FormatReader) -> None:
    """Read a small file with the usual kinds of branches, before anything is timed.

    ROOT loads its libraries and the JIT emits every function of the read path, so that the first
    real pass meets a warm process and a cold execution measures storage alone.

    Raises:
        PayloadError: even that does not work.
    """
    with tempfile.TemporaryDirectory(prefix="treehammer-warm-up-") as folder:
        path = os.path.join(folder, "warm-up.root")
        getattr(root.treehammer, format_.write_warm_up)(path, "warm")
        small = replace(
            task, urls=[path], adler32s=[""], tree="warm", branches=1.0, events=0.5, settings={}
        )
        format_.passes(root, small).run_pass()
