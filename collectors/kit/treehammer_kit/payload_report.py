"""Report of an execution: performs the task, and writes the result however it ends.

The result includes facts about this build of ROOT and its environment, to explain differences between
runs.  An untimed checksum of all values proves that releases, doors and formats agree.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import re
import sys
import traceback
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

from . import loop_libraries, root_engine
from .payload_task import PayloadError, PayloadTask, write_result
from .read_passes import get_tree, is_ntuple, open_file

_RECORDED_VARIABLES = re.compile(r"^(ROOT|XRD|Xrd|LD_|CLING|X509|MALLOC_|OMP_)")
_SECRET_VARIABLES = re.compile(r"TOKEN|PASS|SECRET|KEY", re.IGNORECASE)
_NUMPY_METADATA = re.compile(r"numpy-([^-]+)(-py[\d.]+)?\.(dist|egg)-info$")
_SHARED_LIBRARY = re.compile(r"\.so(\.|$)")

#: Functions that return the versions of the compression libraries.
_COMPRESSION = {
    "zlib_version": "zlibVersion",
    "lzma_version": "lzma_version_string",
    "lz4_version": "LZ4_versionString",
    "zstd_version": "ZSTD_versionString",
}


def collect_build_facts(root: Any) -> Dict[str, Any]:
    """Collect the catalogue values of the build, as ROOT reports them."""
    system = root.gSystem
    features = str(root.gROOT.GetConfigFeatures()).split()
    standards = [item[3:] for item in features if re.fullmatch(r"cxx\d\w", item)]
    facts = {
        "root_version": root.gROOT.GetVersion(),
        "root_commit": root.gROOT.GetGitCommit(),
        "root_platform": system.GetBuildArch(),
        "root_compiler": system.GetBuildCompilerVersionStr(),
        "root_flags": system.GetFlagsOpt(),
        "root_cxx_standard": standards[0] if standards else "",
        "root_features": " ".join(features),
    }
    return {name: str(value) for name, value in facts.items() if str(value)}


def collect_library_facts() -> Dict[str, Any]:
    """Collect the hash of libCore and the versions of its compression libraries.

    A version whose function is not exported stays unknown.
    """
    core = next((path for path, _ in list_loaded_libraries() if "/libCore." in path), None)
    if core is None:
        return {}
    digest = hashlib.sha256()
    with open(core, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    facts: Dict[str, Any] = {"libcore_sha256": digest.hexdigest()}
    handle = ctypes.CDLL(core)  # already loaded; with the symbols of its dependencies
    for name, function in _COMPRESSION.items():
        with suppress(AttributeError):
            call = getattr(handle, function)
            call.restype = ctypes.c_char_p
            if text := call():
                facts[name] = text.decode("ascii", "replace")
    return facts


def list_loaded_libraries() -> List[Tuple[str, int]]:
    """List path and size in bytes of every shared library mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
        fields = [line.rstrip("\n").split(None, 5) for line in stream]
    paths = sorted({field[5] for field in fields if len(field) == 6})
    return [
        (path, os.stat(path).st_size)
        for path in paths
        if path.startswith("/") and _SHARED_LIBRARY.search(path) and os.path.exists(path)
    ]


def collect_inventory() -> str:
    """Return JSON: loaded libraries, relevant environment (secrets masked), Python and NumPy."""
    environment = {
        name: "***" if _SECRET_VARIABLES.search(name) else value
        for name, value in sorted(os.environ.items())
        if _RECORDED_VARIABLES.match(name)
    }
    # By the folder of NumPy's metadata: importlib.metadata takes 40 ms to load.
    folders = filter(os.path.isdir, sys.path)
    matches = (_NUMPY_METADATA.match(item) for folder in folders for item in os.listdir(folder))
    document = {
        "libraries": list_loaded_libraries(),
        "environment": environment,
        "python": platform.python_version(),
        "numpy": next((match[1] for match in matches if match), None),
    }
    return json.dumps(document, sort_keys=True)


#: Version of the algorithm; checksums of different versions cannot be compared.
CHECKSUM_VERSION = 2

_CHUNK = 4 * 1024 * 1024


def compute_value_hashes(root: Any, task: PayloadTask) -> Tuple[Dict[str, Any], List[str]]:
    """Hash every supported value of all files, in order; return values and each leaf's "name kind hash".

    Covered are leaves of fundamental types with fixed and variable lengths, text, and top-level
    ``std::string`` and ``std::vector`` of numbers or strings; others are listed as skipped.  A TTree
    and an RNTuple of the same values have the same checksum.

    The adler32 of each file is checked first.  Uncompressed baskets, and most of those compressed
    with zstd, carry no checksum, so that no release would notice a changed value: all would agree on
    the wrong one.

    Where no leaf is covered, the values were not checked, and there is no checksum.

    Raises:
        PayloadError: a file or tree is missing, its bytes differ from the manifest, or a read failed.
    """
    ntuple = False
    sums: Any = None
    values: Dict[str, Any] = {}
    for index, url in enumerate(task.urls):
        reader = open_file(root, url)
        if task.adler32s[index]:
            check_adler32(url, _read_content(root, reader, url), task.adler32s[index])
        if sums is None:
            ntuple = is_ntuple(root, reader, task)
            sums = _make_checksum(root, ntuple, task.missing_branches)
        if not ntuple:
            get_tree(reader, url, task.tree)
        tree = (reader.current.file, task.tree) if ntuple else (reader.current.tree,)
        if not sums.Read(*tree):
            raise PayloadError("read", "entry", "checksum", f"{url}: {sums.message}")
        values.setdefault("file_class", str(reader.file_class))
        values.setdefault("branches_total", int(sums.branches))
        reader.Close()
    lines = [str(line) for line in sums.Lines()] if sums else []
    uncovered = [str(name) for name in sums.uncovered]
    values.update(describe_checksum(lines, int(sums.entries), uncovered))
    return values, lines


def describe_checksum(
    lines: Sequence[str], entries: int, uncovered: Sequence[str]
) -> Dict[str, Any]:
    """Return the catalogue values of a checksum.

    Args:
        lines: "name kind hash" of every leaf, in alphabetical order.
        uncovered: names and types of the leaves that it does not cover.
    """
    values = {
        "events_total": entries,
        "checksum_version": CHECKSUM_VERSION,
        "checksum_leaves": len(lines),
        "checksum_skipped_leaves": json.dumps(list(uncovered)),
    }
    if lines:
        values["value_checksum"] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return values


def _make_checksum(root: Any, ntuple: bool, left_out: Iterable[str]) -> Any:
    """Compile the checksum of a format; return one that leaves out some branches."""
    if ntuple:
        root_engine.compile_ntuple_header(root, "ntuple_checksum.hpp")
        sums = root.treehammer.NTupleChecksum()
    else:
        root_engine.compile_header(root, "checksum.hpp")
        sums = root.treehammer.TreeChecksum()
    for name in left_out:
        sums.left_out.push_back(name)
    return sums


def _read_content(root: Any, reader: Any, url: str) -> Iterator[Any]:
    """Read the whole file through its door."""
    size = int(reader.file_size)
    buffer = ctypes.create_string_buffer(_CHUNK)
    for offset in range(0, size, _CHUNK):
        length = min(_CHUNK, size - offset)
        address = ctypes.addressof(buffer)
        if not root.treehammer.CopyOut(reader.current.file, offset, length, address):
            message = f"{url}: {length} bytes from {offset} cannot be read"
            raise PayloadError("read", "content", "checksum", message, transient="://" in url)
        yield memoryview(buffer)[:length]


def check_adler32(url: str, blocks: Iterable[Any], expected: str) -> None:
    """Compare the adler32 of a file's blocks with the manifest's.

    Raises:
        PayloadError: they differ.
    """
    adler32 = 1
    for block in blocks:
        adler32 = zlib.adler32(block, adler32)
    if f"{adler32:08x}" != expected.lower():
        raise PayloadError(
            "data-check",
            "content",
            "checksum",
            f"{url} has adler32 {adler32:08x}, the manifest says {expected}: its content changed, and "
            "its measurements are of other data. Make or place the dataset again.",
        )


@dataclass
class PayloadReport:
    """Values recorded so far, which survive the failure of a later step.

    Attributes:
        values: by catalogue name.
        extras: by the names of the test's own metrics.
        operations: rows of a load test.
        phase: the current phase, which an unexpected failure names.
    """

    values: Dict[str, Any] = field(default_factory=dict)
    extras: Dict[str, float] = field(default_factory=dict)
    operations: Sequence[Mapping[str, Any]] = ()
    phase: str = "import"

    def add_offered(self, figures: Mapping[str, float], declared: Sequence[str]) -> None:
        """Add those of the kit's own figures that the test declares among its metrics."""
        self.extras.update({name: figures[name] for name in figures if name in declared})


def run_payload(
    perform: Callable[[PayloadTask, PayloadReport], None],
    folder: Optional[str] = None,
    build: Optional[Callable[[str, PayloadTask], Dict[str, Any]]] = None,
) -> NoReturn:
    """Perform the task of ``job.json``, write the result, and exit.

    Args:
        perform: performs the task and fills in the report.
        folder: the payload's folder, base of ``@file``; by default the script's.
        build: builds libraries for the task below a folder, when the worker requests only the build;
            returns the result's values.
    """

    def perform_job(job: str, report: PayloadReport) -> None:
        task = PayloadTask.read(job, folder or os.path.dirname(os.path.abspath(sys.argv[0])))
        base = os.environ.get(loop_libraries.BUILD_VARIABLE)
        if base is None:
            perform(task, report)
        else:
            report.values.update(build(base, task) if build else {"folder": ""})

    report_job("treehammer_kit", perform_job)


def report_job(kit: str, perform: Callable[[str, PayloadReport], None]) -> NoReturn:
    """Perform the job that the worker started, write the result, and exit.

    Args:
        kit: named in messages.
        perform: performs the job of a ``job.json`` and fills in the report.
    """
    job, result = os.environ.get("TREEHAMMER_JOB"), os.environ.get("TREEHAMMER_RESULT")
    if not job or not result:
        sys.exit(
            f"{kit}: TREEHAMMER_JOB and TREEHAMMER_RESULT are not set; run this payload "
            "with 'treehammer submit' or 'python worker.pyz run job.json'"
        )
    report = PayloadReport()
    failure = None
    try:
        perform(job, report)
    except PayloadError as error:
        failure = error.document
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
        failure = PayloadError("payload", "exception", report.phase, message).document
    write_result(result, report.values, report.extras, failure, report.operations)
    if failure:
        print(f"{kit}: {failure['message']}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # ROOT's teardown is not part of the measurement and may crash; operations of a load that hang,
    # and libraries that wait for them, must not keep the process.
    os._exit(1 if failure else 0)


def perform_with_root(
    task: PayloadTask,
    report: PayloadReport,
    run_timed: Callable[[Any], None],
    loop: loop_libraries.LoopSource,
) -> None:
    """Load ROOT, compute the checksum or run the timed part, and report the facts of this ROOT.

    Args:
        task: the execution.
        report: takes the values.
        run_timed: runs the timed part with ROOT.
        loop: its loop, whose libraries are used if they were compiled.

    Raises:
        PayloadError: ROOT cannot be loaded, or the checksum or the timed part fails.
    """
    libraries = None
    if task.kind != "checksum":
        libraries = loop_libraries.find_libraries(task, loop)
        compiler = libraries.compiler if libraries else loop_libraries.CLING
        report.values["loop_compiler"] = compiler
    root, imported = root_engine.load_root(libraries)
    report.values.update(imported)
    report.values.update(collect_build_facts(root))
    root_engine.load_extensions(root, task.libraries, task.imports, task.folder)
    try:
        if task.kind == "checksum":
            report.phase = "checksum"
            root_engine.compile_kit(root)
            report.values.update(compute_value_hashes(root, task)[0])
        else:
            run_timed(root)
    finally:
        # After the measurement, to leave it undisturbed.
        report.values.update(collect_library_facts())
        report.values["inventory"] = collect_inventory()


def check_equal_passes(amounts: Sequence[str]) -> None:
    """Refuse passes that read different amounts, each described by a text.

    Raises:
        PayloadError: two of them differ.
    """
    if len(set(amounts)) > 1:
        message = f"the passes read different amounts: {', '.join(amounts)}"
        raise PayloadError("data-check", "passes", "loop", message)
