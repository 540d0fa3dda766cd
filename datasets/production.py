"""Production of dataset files: scripts under ROOT in a separate process write and measure them.

The layout of each file's tree or RNTuple goes into the manifest.  Raw files need no ROOT: their bytes
depend on seed, file and position alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import IO, Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.payload_failures import describe_crash
from treehammer.datasets.manifest import (
    TTREE,
    Distribution,
    FileDigest,
    TreeLayout,
    digest_blocks,
    digest_file,
)
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, MergedSpec, MergeSource, RawSpec
from treehammer.errors import ConfigError, DatasetError, SoftwareError, TreehammerError
from treehammer.text_formatting import (
    ProgressCallback,
    ProgressFactory,
    no_progress,
    pluralize,
)

GENERATE_SCRIPT = Path(__file__).parent / "generate"
KIT_FOLDER = Path(providers.__file__).parents[1] / "kit"
#: Library of glibc with checks of the heap.
MALLOC_CHECKS = "libc_malloc_debug.so.0"
#: Lines of ROOT's output that a message quotes.
LOG_TAIL_LINES = 5
#: Seconds between two reports of the object that is worked on.
NOTE_INTERVAL_S = 1.0
TOP_BRANCH_SHARE = 0.02
#: Bytes that one hash yields; part of the definition of the files.
RAW_BLOCK_BYTES = 1 << 20


# --- process with ROOT


def prepare_dataset_root(root: str, software_dir: Path, bars: ProgressFactory) -> SoftwareRequest:
    """Prepare the ROOT of a ``root`` axis value on this machine, unless it is prepared.

    Raises:
        ConfigError: ``root`` names no ROOT.
        SoftwareError: it cannot be made ready.
    """
    try:
        request = providers.parse_software_request(root)
    except ValueError as error:
        raise ConfigError(str(error), where="ROOT release") from error
    if request.provider in providers.WITHOUT_ROOT:
        raise ConfigError(
            "datasets are made and measured with ROOT", where=f"ROOT release {root!r}"
        )
    return prepare_root(request, software_dir, bars)


def run_action(
    action: str,
    document: Mapping[str, Any],
    request: SoftwareRequest,
    on_done: ProgressCallback,
    *,
    check_memory: bool = False,
) -> dict[str, Any]:
    """Run ``generate`` under a prepared ROOT and return its result.

    The process ends with this one: on an interruption it is killed, and when this process dies
    without having been able to, the broken pipe ends it.

    Args:
        action: one of the script's ``ACTIONS``.
        document: the script's request.
        request: a ROOT from :func:`prepare_dataset_root`.
        on_done: receives the progress that the script reports.
        check_memory: abort the process as soon as the C library finds a damaged heap.

    Raises:
        SoftwareError: this ROOT cannot be used, or has another version than requested.
        DatasetError: the script failed; ``where`` is the file.
    """
    try:
        setup = providers.setup_software(request, os.environ, KIT_FOLDER)
        command = [*setup.build_command("python", str(GENERATE_SCRIPT)), action]
    except ExecutionError as fault:
        raise SoftwareError(str(fault)) from fault
    # Loading takes seconds, on a busy machine many.
    on_done(0, f"loading ROOT {request.request}")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**setup.env, **(_watch_heap(setup.env) if check_memory else {})},
        )
        work = _Work()
        try:
            answer = _exchange_messages(process, document, on_done, work)
        finally:
            process.kill()
            process.wait()
        if answer is None:
            raise _explain_end(action, request, work, process.returncode, log)
        if "error" in answer:
            raise DatasetError(
                answer["error"]["message"],
                where=answer["error"]["where"],
                hint=_first_root_error(log),
            )
    result: dict[str, Any] = answer["result"]
    if request.version and result["root"] != request.version:
        raise SoftwareError(
            f"ROOT {request.version} was requested, but this is {result['root']}",
            where=request.request,
        )
    return result


def _watch_heap(env: Mapping[str, str]) -> dict[str, str]:
    """Let glibc check each block that is freed; since 2.34 this needs a library of its own."""
    libraries = [env.get("LD_PRELOAD", ""), MALLOC_CHECKS]
    return {"MALLOC_CHECK_": "3", "LD_PRELOAD": " ".join(filter(None, libraries))}


@dataclass
class _Work:
    """File and object that the process announced last; '' before it has opened a file."""

    file: str = ""
    object: str = ""
    done: int = 0

    def __str__(self) -> str:
        return f"{self.object} of {Path(self.file).name}" if self.object else Path(self.file).name


def _explain_end(
    action: str, request: SoftwareRequest, work: _Work, code: int | None, log: IO[str]
) -> TreehammerError:
    """Explain the end of a process without an answer, by its exit code and its output."""
    log.seek(0)
    cause = describe_crash(log.read())
    output = f". {cause}" if cause else f":\n{_format_log_tail(log)}"
    if work.file and code is not None and code < 0:
        end = signal.Signals(-code).name
        return DatasetError(
            f"ROOT {request.request} was ended by {end} at {work.object or 'this file'!r}{output}",
            where=work.file,
        )
    return SoftwareError(
        f"ended without an answer{f' at {work}' if work.file else ''}{output}",
        where=f"datasets {action} with ROOT {request.request}",
        hint=""
        if work.file
        else "Check that this ROOT can be imported in Python and compiles C++.",
    )


def _exchange_messages(
    process: subprocess.Popen[str],
    document: Mapping[str, Any],
    on_done: ProgressCallback,
    work: _Work,
) -> dict[str, Any] | None:
    """Send the request, pass progress on, and return the final message, or None."""
    assert process.stdin is not None
    assert process.stdout is not None
    reported_s = 0.0
    with process.stdin, process.stdout:
        try:
            json.dump(document, process.stdin)
            process.stdin.close()
        except BrokenPipeError:
            return None
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "result" in message or "error" in message:
                return message
            for key, value in message.items():
                setattr(work, key, value)
            is_due = time.monotonic() - reported_s > NOTE_INTERVAL_S
            if "done" in message or (work.object and is_due):
                on_done(work.done, str(work))
                reported_s = time.monotonic()
    return None


def _first_root_error(log: IO[str]) -> str:
    """Find ROOT's own first error, e.g. that no space is left."""
    log.seek(0)
    errors = (line.strip() for line in log if line.startswith(("SysError in", "Error in")))
    return next((f"ROOT said: {line}" for line in errors), "")


def _format_log_tail(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.rstrip() for line in log if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])


# --- writing


def write_generated_file(
    spec: GeneratedSpec, software: SoftwareRequest, path: Path, on_done: ProgressCallback
) -> dict[str, Any]:
    """Write the file of a generated dataset; returns its facts for the manifest.

    Args:
        spec: the spec.
        software: ROOT, from :func:`prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": spec.file_names[0],
        "tree": spec.tree,
        "entries": spec.entries,
        "compression": spec.layout.compression_setting,
        "events_per_cluster": spec.layout.events_per_cluster,
        "collections": spec.plan_collections(),
        "branches": spec.plan_branches(),
    }
    return run_action("make", request, software, on_done)


def write_merged_file(
    spec: MergedSpec,
    source: Path,
    software: SoftwareRequest,
    path: Path,
    on_done: ProgressCallback,
) -> dict[str, Any]:
    """Rewrite the events of the source; returns the file's facts for the manifest.

    Args:
        spec: the spec.
        source: from :func:`find_source`.
        software: ROOT, from :func:`prepare_dataset_root`.
        path: the file to create.
        on_done: receives the number of events written.

    Raises:
        DatasetError: the source differs from the spec, or the file cannot be written.
        SoftwareError: this ROOT cannot be used.
    """
    request = {
        "path": str(path),
        "file_name": spec.file_names[0],
        "source": str(source),
        "tree": spec.tree,
        "entries": spec.source.entries,
        "branches": spec.source.branches,
        "copies": spec.merged.copies,
        "kept_bits": spec.merged.kept_bits,
        "seed": spec.dataset.seed,
        "compression": spec.layout.compression_setting,
        "events_per_cluster": spec.layout.events_per_cluster,
        "basket_memory": spec.layout.basket_memory,
    }
    writer_facts = run_action("merge", request, software, on_done)
    (layout,) = measure_layouts([source], software, tree=spec.tree)
    source_facts = spec.source.model_dump(include={"file", "about", "size", "sha256"})
    return {**writer_facts, "source": {**source_facts, "layout": asdict(layout)}}


def find_source(spec: MergedSpec, location: Path | None) -> Path:
    """Find the source file of a merged dataset and verify its checksum.

    Args:
        spec: names the file.
        location: the file, or a folder that holds it under any name; None where none was given.

    Raises:
        DatasetError: it is missing, or is another file.
    """
    source = spec.source
    hint = (
        f"Required: {source.about}.\n  Give the file, or a folder that holds it, with "
        f"'treehammer datasets make {spec.name} --source PATH', or set sources_dir "
        "in treehammer.toml or as TREEHAMMER_SOURCES_DIR."
    )
    if location is None:
        raise DatasetError(
            f"is made from {source.file}, which is not shipped with Treehammer",
            where=spec.name,
            hint=hint,
        )
    try:
        if location.is_dir():
            for path in _find_candidates(location, source):
                if digest_file(path).sha256 == source.sha256:
                    return path
            problem = (
                f"no file there is {source.file} ({source.size} bytes, sha256 {source.sha256})"
            )
        else:
            digest = digest_file(location)
            if digest.sha256 == source.sha256:
                return location
            problem = (
                f"has {digest.size} bytes with sha256 {digest.sha256}; {source.file} has "
                f"{source.size} bytes with {source.sha256}"
            )
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    raise DatasetError(problem, where=str(location), hint=hint)


def _find_candidates(folder: Path, source: MergeSource) -> Iterator[Path]:
    """List files of the right size, the one of the right name first."""
    paths = sorted(folder.iterdir(), key=lambda path: (path.name != source.file, path.name))
    return (path for path in paths if path.is_file() and path.stat().st_size == source.size)


def write_raw_file(
    spec: RawSpec, index: int, path: Path, advance: Callable[[int], None]
) -> FileDigest:
    """Write a file block by block; ``advance`` receives the bytes of each block."""
    with path.open("xb") as stream:
        return digest_blocks(generate_blocks(spec, index), advance, stream)


def generate_blocks(spec: RawSpec, index: int) -> Iterator[bytes]:
    """Generate a file's bytes: block N is SHAKE-128 of ``treehammer/raw/SEED/FILE/N``.

    Args:
        spec: the spec.
        index: number of the file, from 0.
    """
    for start in range(0, spec.file_size, RAW_BLOCK_BYTES):
        key = f"treehammer/raw/{spec.dataset.seed}/{index}/{start // RAW_BLOCK_BYTES}"
        size = min(RAW_BLOCK_BYTES, spec.file_size - start)
        yield hashlib.shake_128(key.encode()).digest(size)


# --- measuring


@dataclass(frozen=True)
class TreeContent:
    """Common branches of the main trees of a dataset's files, and their differences.

    Attributes:
        branches: top-level branches of all files with entries, in the order of the first of them.
        missing: branch that a file with entries lacks -> the files that lack it.
        other_lengths: branch with another number of entries than its tree -> both numbers.
        friends: friend trees that lie with the main trees; they are not read.
        other_trees: trees and RNTuples of the first file beside the main one.
        old_ntuples: RNTuples of the first file before version 1.0 of the format, which cannot be read.
        types: leaf or field -> its type; files do not differ in them.
    """

    branches: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    other_lengths: Mapping[str, str] = field(default_factory=dict)
    friends: tuple[str, ...] = ()
    other_trees: tuple[str, ...] = ()
    old_ntuples: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)


def measure_layouts(
    paths: Sequence[Path],
    software: SoftwareRequest,
    *,
    tree: str = "",
    bars: ProgressFactory = no_progress,
) -> tuple[TreeLayout, ...]:
    """Measure the main tree or RNTuple of each file, as :func:`measure_files`."""
    return measure_files(paths, software, tree=tree, bars=bars)[0]


def measure_files(
    paths: Sequence[Path],
    software: SoftwareRequest,
    *,
    tree: str = "",
    bars: ProgressFactory = no_progress,
) -> tuple[tuple[TreeLayout, ...], TreeContent]:
    """Measure the main tree or RNTuple of each file, and compare the files with each other.

    Args:
        paths: ROOT files that all hold it.
        software: the ROOT to do it with, from :func:`prepare_dataset_root`.
        tree: its name; by default the tree or RNTuple of most entries times branches of the first file
            with entries.
        bars: opens progress bars.

    Raises:
        DatasetError: a file cannot be read or holds no such tree, or two files hold a branch with
            different types.
        SoftwareError: this ROOT cannot be used.
    """
    request = {"paths": [str(path) for path in paths], "tree": tree}
    with bars("Measuring files", len(paths)) as step:
        answer = run_action("measure", request, software, step)
    items = answer["layouts"]
    content = replace(
        compare_trees(paths, items),
        other_trees=tuple(answer["others"]),
        old_ntuples=tuple(answer["old_ntuples"]),
    )
    return tuple(_build_layout(item) for item in items), content


def compare_trees(paths: Sequence[Path], items: Sequence[Mapping[str, Any]]) -> TreeContent:
    """Compare the trees of a dataset's files.

    Files without entries may lack branches, as nothing is read of them.

    Args:
        paths: the files.
        items: the answers of the action ``measure``.

    Raises:
        DatasetError: two files hold a branch with different types.
    """
    types = _merge_types(paths, items)
    filled = [(path, item) for path, item in zip(paths, items, strict=True) if item["entries"]]
    names = dict.fromkeys(name for _, item in filled for name in item["branches"])
    missing = _find_missing_branches(names, filled)
    return TreeContent(
        branches=tuple(name for name in names if name not in missing),
        missing=missing,
        other_lengths=_describe_other_lengths(filled, names_files=len(paths) > 1),
        friends=tuple(dict.fromkeys(friend for item in items for friend in item["friends"])),
        types=types,
    )


def _find_missing_branches(
    names: Iterable[str], filled: Sequence[tuple[Path, Mapping[str, Any]]]
) -> dict[str, str]:
    """Map each branch that some files lack to the names of these files."""
    top_levels = [(path.name, frozenset(item["branches"])) for path, item in filled]
    lacking = {name: [file for file, level in top_levels if name not in level] for name in names}
    return {name: ", ".join(files) for name, files in lacking.items() if files}


def _describe_other_lengths(
    filled: Sequence[tuple[Path, Mapping[str, Any]]], *, names_files: bool
) -> dict[str, str]:
    """Map each branch with another number of entries than its tree to both numbers."""
    return {
        name: f"{entries} of {item['entries']} entries" + (f" in {path.name}" * names_files)
        for path, item in filled
        for name, entries in item["lengths"].items()
    }


def _merge_types(paths: Sequence[Path], items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the types of all leaves.

    Raises:
        DatasetError: two files hold a branch with different types.
    """
    types: dict[str, tuple[str, Path]] = {}
    for path, item in zip(paths, items, strict=True):
        differing = [
            name for name, kind in item["types"].items() if types.get(name, (kind, path))[0] != kind
        ]
        if differing:
            expected, first = types[differing[0]]
            more = f", and {pluralize(len(differing) - 1, 'more branch', 'more branches')} differ"
            raise DatasetError(
                f"branch {differing[0]!r} is {item['types'][differing[0]]} here and {expected} in "
                f"{first.name}{more if len(differing) > 1 else ''}",
                where=str(path),
                hint="Readers of several files take the types of the first for all. Add files of equal "
                "types as a dataset of their own.",
            )
        types.update(
            {name: (kind, path) for name, kind in item["types"].items() if name not in types}
        )
    return {name: kind for name, (kind, _) in types.items()}


def _build_layout(item: dict[str, Any]) -> TreeLayout:
    # Embedded baskets are compressed with the record they lie in; nothing finer is known.
    record_share = item["record_zipped"] / item["record_unzipped"]
    embedded_zipped = math.fsum(size * record_share for size in item["embedded"])
    zipped = [
        direct + embedded * record_share
        for direct, embedded in zip(item["zipped"], item["embedded"], strict=True)
    ]
    unzipped = [sum(sizes) for sizes in zip(item["unzipped"], item["embedded"], strict=True)]
    clusters = [
        direct + embedded_size * record_share
        for direct, embedded_size in zip(
            item["clusters"], item["embeddedClusters"] or [0] * len(item["clusters"]), strict=True
        )
    ]
    embedded_baskets = [size * record_share for size in item["embeddedBaskets"]]
    return TreeLayout(
        tree=item["tree"],
        format=item["format"],
        entries=item["entries"],
        branches=len(zipped),
        unzipped_bytes=sum(unzipped),
        zipped_bytes=sum(item["zipped"]) + round(embedded_zipped),
        embedded_bytes=round(embedded_zipped),
        top2_share=_share_of_largest(zipped),
        clusters=len(item["clusters"]),
        cluster_zipped_bytes=summarize_values([size for size in clusters if size]),
        basket_zipped_bytes=summarize_values([*item["baskets"], *embedded_baskets]),
        branch_ratio=summarize_values(
            [sizes[0] / sizes[1] for sizes in zip(unzipped, zipped, strict=True) if sizes[1] > 0]
        ),
        embedded_baskets=len(embedded_baskets),
        basket_order=_format_basket_order(item) if item["format"] == TTREE else "",
        mean_jump_bytes=item["mean_jump"],
    )


def _format_basket_order(item: dict[str, Any]) -> str:
    return " and ".join(item["sorted"]) or "neither"


def _share_of_largest(sizes: Sequence[float]) -> float:
    count = max(1, round(TOP_BRANCH_SHARE * len(sizes)))
    total = math.fsum(sizes)
    return math.fsum(sorted(sizes)[-count:]) / total if total else 0.0


def summarize_values(values: Sequence[float]) -> Distribution:
    """Return minimum, quartiles (linearly interpolated) and maximum."""
    alone = [float(sum(values))] * 3
    p25, median, p75 = alone if len(values) < 2 else quantiles(values, n=4, method="inclusive")
    least, most = float(min(values, default=0.0)), float(max(values, default=0.0))
    return Distribution(len(values), least, p25, median, p75, most)


def probe_file(
    path: Path,
    layout: TreeLayout,
    software: SoftwareRequest,
    *,
    libraries: Sequence[Path] = (),
    bars: ProgressFactory = no_progress,
) -> dict[str, str]:
    """Read all branches in processes that may crash; return those that ROOT cannot read -> reason.

    All entries are read, of trees above 100 MB the first 2000. The libraries are loaded first.

    Raises:
        DatasetError: the file cannot be read, or holds no such tree.
        SoftwareError: this ROOT cannot be used.
    """
    loaded = [str(library.absolute()) for library in libraries]
    request = {"path": str(path), "tree": layout.tree, "libraries": loaded}
    with bars("Reading branches", layout.branches) as step:
        answer = run_action("probe", request, software, step, check_memory=True)
    return {item["name"]: _describe_unreadable(item) for item in answer["unreadable"]}


def _describe_unreadable(item: Mapping[str, str]) -> str:
    cause = describe_crash(item["log"]) or (
        f"Reading it {item['end']}, without a message or C++ functions."
        if "SIG" in item["end"]
        else f"Reading it {item['end']}."
    )
    return f"{item['class']}: {cause}" if item["class"] else cause
