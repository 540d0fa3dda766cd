"""Check of the node: compiler and headers, home, scratch, limits and network, and what depends on them."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_tcp

from treehammer.collectors.kit.treehammer_kit import loop_libraries
from treehammer.collectors.record.node_needs import NODE_NEEDS, describe_lack
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.worker.probes import node_check
from treehammer.collectors.worker.probes.node_check import NodeCheck, check_node
from treehammer.collectors.worker.probes.process_stats import Cgroup
from treehammer.collectors.worker.run.payload_failures import (
    attribute_to_compiler,
    attribute_to_headers,
)

GCC = """#!/bin/sh
cat > sources
[ -z "$MISSING" ] || echo "<stdin>:1:10: fatal error: $MISSING: No such file or directory" >&2
echo "gcc version 11.5.0 20240719 (Red Hat 11.5.0-5) (GCC)" >&2
[ -z "$MISSING" ]
"""
BROKEN = "#!/bin/sh\necho \"g++: fatal error: cannot execute 'cc1plus'\" >&2; exit 1\n"


def check(folder: Path, env: Mapping[str, str] | None = None, **options: Any) -> NodeCheck:
    environment = {"PATH": str(folder), "HOME": str(folder), **(env or {})}
    return check_node("SITE_A", str(folder), environment, Cgroup(), **options)


def install(folder: Path, program: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "g++").write_text(program)
    (folder / "g++").chmod(0o755)


@pytest.fixture(autouse=True)
def _no_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let ROOT's interpreter find no headers without a compiler; sh needs cat."""
    monkeypatch.setattr(node_check, "_find_missing_header", lambda: "new")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").symlink_to("/bin/cat")


def test_compiler_and_headers_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = check(tmp_path)
    assert bare.lacks["compiler"] == "no g++, c++, clang++"
    assert bare.lacks["headers"] == "<new> is not found"
    monkeypatch.setattr(node_check, "_find_missing_header", lambda: "")
    assert "headers" in check(tmp_path).has
    install(tmp_path, GCC)
    whole = check(tmp_path)
    assert whole.has["compiler"].startswith(
        "gcc version 11.5.0 20240719 (Red Hat 11.5.0-5) (GCC), "
    )
    assert "headers" in whole.has
    without = check(tmp_path, {"MISSING": "linux/perf_event.h"})
    assert "compiler" in without.has
    assert without.lacks["headers"] == "<linux/perf_event.h> is not found"
    install(tmp_path, BROKEN)
    broken = check(tmp_path)
    assert "cannot execute 'cc1plus'" in broken.lacks["compiler"]
    assert "headers" in broken.has
    assert node_check.COMPILERS == loop_libraries._COMPILERS


def test_compiler_of_a_root_counts(tmp_path: Path) -> None:
    node = check(tmp_path)
    install(tmp_path / "view", GCC)
    env = {"PATH": f"{tmp_path / 'view'}:{tmp_path}"}
    assert {"compiler", "headers"} <= set(node.lack_names.split(", "))
    assert not {"compiler", "headers"} & set(node.look_with(env).lacks)
    assert not {"compiler", "headers"} & set(node.look_with(None).lacks), "a container"
    assert node.look_with({"PATH": str(tmp_path)}) is node


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        ((), "new"),
        (("lib/gcc/x/11/crtbegin.o", "include/c++/11/new"), "stdlib.h"),
        (("lib/gcc/x/9/crtbegin.o", "lib/gcc/x/11/crtbegin.o", "include/c++/9/new"), "new"),
        (
            (
                "lib/gcc/x/11/crtbegin.o",
                "include/c++/11/new",
                "include/x-linux-gnu/stdlib.h",
                "include/linux/perf_event.h",
            ),
            "",
        ),
    ],
)
def test_headers_are_found_as_by_roots_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], missing: str
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(node_check, "_SYSTEM", str(tmp_path))
    for name in installed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert node_check._find_missing_header() == missing


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(tmp_path).has["home"] == str(tmp_path)
    gone = check(tmp_path, {"HOME": "/nowhere"})
    assert gone.lacks["home"] == "HOME is /nowhere, which does not exist"

    def find_none(_: int) -> Any:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", find_none)
    unknown = check(tmp_path, {"HOME": ""})
    assert unknown.lacks["home"] == f"HOME is not set, and user {os.geteuid()} is not in passwd"


def test_small_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ad = tmp_path / "machine.ad"
    ad.write_text("Memory = 400\nDisk = 2000\n")
    monkeypatch.setenv("_CONDOR_MACHINE_AD", str(ad))
    node = check(tmp_path)
    assert "419 MB for the slot" in node.lacks["memory"]
    assert node.has["disk"].endswith(", 2 MB for the slot")
    with pytest.raises(ExecutionError) as failure:
        node.require("disk", "memory")
    assert failure.value.failure == Failure(
        "software-setup", "memory", "node", describe_lack("memory", node.lacks["memory"], "SITE_A")
    )
    with pytest.raises(ExecutionError, match=r"SITE_A.*free disk space \(.* to stage, .* free in"):
        node.require_space(str(tmp_path), 10**18)


def test_network_is_lacking_only_where_a_server_is_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_check, "read_text", lambda _: "")
    with serve_tcp(lambda connection: connection.close()) as port:
        door = f"root://127.0.0.1:{port}//f"
        near = check(tmp_path, doors=[door, "/a/file", ""])
        assert near.has["door"].startswith(f"127.0.0.1:{port} in ")
        assert "network" in near.has
    far = check(tmp_path, doors=[door], service=f"https://127.0.0.1:{port}/")
    assert far.lacks["network"] == "no route but to itself"
    assert far.lacks["door"].startswith(f"127.0.0.1:{port} does not answer")
    assert far.lacks["service"] == far.lacks["door"]
    assert json.loads(json.dumps(far.to_document()))["lacks"] == dict(far.lacks)


def test_only_missing_headers_turn_a_payloads_failure_into_the_nodes(tmp_path: Path) -> None:
    node, log = check(tmp_path), "input_line_1:1:10: fatal error: 'new' file not found\n"
    own = Failure("payload", "compile", "compile", "this ROOT cannot compile kit.hpp")
    failure = attribute_to_headers(own, log, node)
    assert (failure.failure_class, failure.kind) == ("software-setup", "headers")
    assert failure.message.startswith(node.describe("headers"))
    assert attribute_to_headers(own, "a.cpp:1:1: error: expected ';'", node) is own
    assert attribute_to_headers(own, log, node.look_with(None)) is own
    broken = Failure("software-setup", "broken", "setup", "ROOT does not compile C++ here")
    assert attribute_to_headers(broken, log, node).kind == "headers"
    read = Failure("read", "entry", "loop", "m")
    assert attribute_to_headers(read, log, node) is read


def test_missing_compiler_turns_a_failed_build_into_the_nodes(tmp_path: Path) -> None:
    node, build = check(tmp_path), Failure("build", "exit", "build", "build.sh ended with 127")
    failure = attribute_to_compiler(build, node)
    assert (failure.failure_class, failure.kind) == ("software-setup", "compiler")
    assert failure.message == f"{node.describe('compiler')} (build.sh ended with 127)"
    assert attribute_to_compiler(build, node.look_with(None)) is build
    stopped = Failure("evicted", "stopped", "build", "m")
    assert attribute_to_compiler(stopped, node) is stopped


def test_each_need_has_one_sentence() -> None:
    for name in NODE_NEEDS:
        sentence = describe_lack(name, "found", "SITE_A")
        assert sentence.startswith("SITE_A: the node lacks ")
        assert "{" not in sentence
        assert sentence.endswith(".")
        assert sentence.replace(".toml", "").rstrip(".").count(". ") == 0
