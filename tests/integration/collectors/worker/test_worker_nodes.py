"""Trials of the worker in sandboxes like nodes of sites: without compiler, HOME, Python, network, space."""

from __future__ import annotations

import glob
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cached_software import prepare_cached
from captured_runs import run_captured
from machine_requirements import skip_or_fail
from worker_bench import READ_TREE

from treehammer.collectors.job_spec import NODE_EXIT_CODE, ExecutionLimits, InputFile
from treehammer.collectors.software import providers
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue

GOOD = """#!/bin/sh
echo '{"format": 1}' > "$TREEHAMMER_RESULT"
"""

#: Runs a command with a folder mounted without the permission to run programs.
NOEXEC = (
    *("unshare", "--user", "--map-root-user", "--mount", "sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,bind,noexec "$0" && exec "$@"',
)


def hide(*patterns: str) -> list[str]:
    """Hide files and folders from the sandbox, links by what they lead to."""
    paths = {os.path.realpath(path) for pattern in patterns for path in glob.glob(pattern)}
    words = []
    for path in sorted(paths):
        kind = ["--tmpfs"] if os.path.isdir(path) else ["--bind", "/dev/null"]
        words += [*kind, path]
    return words


#: Compilers, whose real names differ from those on PATH.
COMPILERS = tuple(
    f"{folder}/{name}"
    for folder in ("/usr/bin", "/usr/local/bin")
    for name in ("g++*", "c++*", "clang*", "*-g++*", "gcc*", "*-gcc*", "cc")
)
PYTHONS = ("/usr/bin/python*", "/usr/local/bin/python*", "/usr/libexec/platform-python")
#: A busy machine takes long where ROOT's interpreter compiles.
LIMITS = ExecutionLimits(600.0, 0)
REMOTE = InputFile("f", "root://door.example.org:1094//f", 1, "00000001")


@dataclass(frozen=True)
class NodeKind:
    """A kind of node, and the outcome there.

    Attributes:
        options: words for bubblewrap.
        environment: variables of the job; HOME is set otherwise.
        with_root: whether the payload reads a tree with ROOT.
        execution: changes of the execution.
        limits: ulimit of the job.
        prefix: command before bubblewrap, which gets the job's folder.
        failure: class and kind of the failure; '' where none is expected.
        lacks: what the record names.
        sentence: words of the sentence in order, with the remedy.
        values: further values of the record.
    """

    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: {"HOME": "/tmp"})
    with_root: bool = False
    execution: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "executable"
    limits: str = "true"
    prefix: Sequence[str] = ()
    failure: str = ""
    lacks: str = ""
    sentence: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


def list_kinds() -> dict[str, NodeKind]:
    """List the kinds of nodes by name; Python's and ROOT's are added by the tests."""
    return {
        "plain": NodeKind(with_root=True),
        "no compiler, no HOME": NodeKind(
            hide(*COMPILERS),
            environment={},
            with_root=True,
            lacks="home, compiler",
            values={
                "loop_compiler": "cling",
                "loop_fallback": "there is no compiler (g++, c++, clang++)",
            },
        ),
        "no headers": NodeKind(
            hide(*COMPILERS, "/usr/include"),
            with_root=True,
            failure="software-setup/headers",
            lacks="compiler, headers",
            sentence=("C++ headers", "<new> is not found", "install gcc-c++", "[sites.local]"),
        ),
        "noexec scratch": NodeKind(
            prefix=NOEXEC,
            with_root=True,
            lacks="exec",
            values={
                "loop_compiler": "cling",
                "loop_fallback": "the scratch folder is mounted noexec",
            },
        ),
        "noexec scratch, program": NodeKind(
            prefix=NOEXEC,
            failure="software-setup/exec",
            lacks="exec",
            sentence=("is mounted noexec", "mount the scratch of the nodes without noexec"),
        ),
        "no network": NodeKind(
            execution={"files": (REMOTE,)},
            failure="software-setup/network",
            lacks="network, door",
            sentence=("a network", "no route but to itself", "give jobs a route to the door"),
        ),
        "small memory": NodeKind(
            kind="python",
            execution={"software": providers.parse_software_request("current")},
            limits="ulimit -v 500000",
            failure="software-setup/memory",
            lacks="memory",
            sentence=(
                "memory (512 MB of address space",
                "give jobs the memory",
                "memory_mb in ceilings",
            ),
        ),
        "small disk": NodeKind(
            ["--size", str(10 << 20), "--tmpfs", "{folder}/scratch"],
            failure="software-setup/disk",
            lacks="disk",
            sentence=("free disk space", "MB free in", "clean the scratch", "raise request_disk"),
        ),
    }


KINDS = list_kinds()


class NodeSandbox:
    """Runs the packed worker as another user, on a read-only system without network."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        (bench.folder / "scratch").mkdir()

    def run(
        self,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        limits: str = "true",
        prefix: Sequence[str] = (),
        writable: bool = True,
    ) -> Any:
        """Run the job that the bench has written."""
        folder = str(self.bench.folder)
        words = ["bwrap", "--die-with-parent", "--unshare-user", "--uid", "12345", "--gid", "12345"]
        words += ["--unshare-net", "--unshare-pid", "--clearenv", "--ro-bind", "/", "/"]
        words += ["--dev", "/dev", "--proc", "/proc"]
        words += ["--bind" if writable else "--ro-bind", folder, folder, "--chdir", folder]
        words += [word.replace("{folder}", folder) for word in options]
        variables = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **(environment or {})}
        for name, value in variables.items():
            words += ["--setenv", name, value]
        run = f"{limits}; exec sh worker.pyz run job.json --work scratch"
        command = [*prefix, *([folder] if prefix else []), *words, "sh", "-c", run]
        done = run_captured(command, timeout=600)
        return self.bench.read_result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def sandbox(bench: Any, packed_worker: Path) -> NodeSandbox:
    if shutil.which("bwrap") is None:
        skip_or_fail("there is no bwrap here (Debian: bubblewrap)")
    probe = ["bwrap", "--unshare-all", "--uid", "12345", "--ro-bind", "/", "/", "true"]
    started = run_captured([*NOEXEC, str(bench.folder), *probe])
    if started.returncode:
        pytest.skip(f"no user namespace here: {started.stderr.strip()}")
    bench.worker = bench.folder / "worker.pyz"
    shutil.copy(packed_worker, bench.worker)
    return NodeSandbox(bench)


@pytest.fixture
def read_tree(request: pytest.FixtureRequest) -> Callable[[], Mapping[str, Any]]:
    """Return what an execution needs that reads a tree with a release of ROOT."""

    def describe() -> Mapping[str, Any]:
        catalogue: FolderCatalogue = request.getfixturevalue("tiny_catalogue")
        (file,) = catalogue.manifest("tiny").files
        path = str(catalogue.root / "tiny" / file.name)
        return {
            "software": prepare_cached("6.40.00"),
            "files": (InputFile(file.name, path, file.size, file.adler32),),
            "tree": "events",
            "variant": {"branches": 1.0, "cache_mb": 1, "events": 1.0},
        }

    return describe


@pytest.mark.root
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_node_is_judged(
    sandbox: NodeSandbox,
    make_spec: Callable[..., Any],
    read_tree: Callable[[], Mapping[str, Any]],
    name: str,
) -> None:
    node = KINDS[name]
    execution = {**node.execution, **(read_tree() if node.with_root else {})}
    payload, kind = (READ_TREE, "python") if node.with_root else (GOOD, node.kind)
    sandbox.bench.write_job(payload, make_spec(**execution), kind=kind, limits=LIMITS)
    pythons = {"TREEHAMMER_PYTHONS": sys.executable}
    ran = sandbox.run(
        node.options, {**pythons, **node.environment}, limits=node.limits, prefix=node.prefix
    )
    values = ran.record_values
    failure = f"{values.get('failure_class', '')}/{values.get('failure_kind', '')}".strip("/")
    assert failure == node.failure, ran.output + ran.errors
    assert values.get("node_lacks", "") == node.lacks
    message = str(values.get("failure_message", ""))
    assert message.startswith("local: the node lacks " if node.failure else "")
    position = 0
    for words in node.sentence:
        position = message.index(words, position)
    assert set(ran.attempt["node"]["lacks"]) == set(filter(None, node.lacks.split(", ")))
    assert {key: values.get(key) for key in node.values} == node.values
    assert ran.exit_code == bool(node.failure)


def test_unwritable_folder_ends_with_its_sentence(
    sandbox: NodeSandbox, make_spec: Callable[..., Any]
) -> None:
    sandbox.bench.write_job(GOOD, make_spec(), kind="executable")
    ran = sandbox.run(environment={"TREEHAMMER_PYTHONS": sys.executable}, writable=False)
    assert ran.exit_code == NODE_EXIT_CODE
    assert ran.errors.startswith("local: the node lacks a folder to write to ([Errno 30] ")
    assert ran.errors.endswith(": let jobs write in the folder in which they start.\n")


def test_node_without_python_says_what_it_looked_for(
    sandbox: NodeSandbox, make_spec: Callable[..., Any]
) -> None:
    sandbox.bench.write_job(GOOD, make_spec(), kind="executable")
    minimal = sandbox.bench.folder / "python3"
    minimal.write_text("#!/bin/sh\necho 3.13.5; exit 1\n")
    minimal.chmod(0o755)
    ran = sandbox.run(hide(*PYTHONS), {"TREEHAMMER_PYTHONS": f"/opt/python3:{minimal}"})
    assert ran.exit_code == NODE_EXIT_CODE
    remark = f"{minimal} is 3.13.5 without one of ctypes, ssl, zlib, not found: python3.9 to python"
    assert ran.errors.startswith(f"local: the node lacks Python 3.9 or later ({remark}")
    assert "python_views in [sites.local] of sites.toml.\n" in ran.errors
