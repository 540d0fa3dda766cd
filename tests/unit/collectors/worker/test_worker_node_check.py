"""Nodes: compiler and headers, home, scratch, limits and network, and what depends on them; energy, cores."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from local_servers import serve_tcp

from treehammer.collectors import process_stats
from treehammer.collectors.kit.treehammer_kit import loop_libraries
from treehammer.collectors.process_stats import Cgroup
from treehammer.collectors.record.node_needs import NODE_NEEDS, describe_lack
from treehammer.collectors.record.outcome import ExecutionError, Failure
from treehammer.collectors.worker.probes import energy, node_check, node_state
from treehammer.collectors.worker.probes.energy import EnergyMeter
from treehammer.collectors.worker.probes.node_check import NodeCheck, check_node
from treehammer.collectors.worker.run import execution_record
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
    assert "gcc version 11.5.0 20240719 (Red Hat 11.5.0-5) (GCC), " in whole.has["compiler"]
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

    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
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


RANGE_UJ = 1_000_000


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "powercap"
    folder.mkdir()
    monkeypatch.setattr(energy, "POWERCAP_FOLDER", str(folder))
    return folder


def add_zone(powercap: Path, zone: str, name: str, value: int = 0) -> Path:
    folder = powercap / zone
    folder.mkdir()
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    return folder / "energy_uj"


def test_packages_are_summed_across_a_wrap(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = add_zone(powercap, "intel-rapl:0", "package-0", 900_000)
    second = add_zone(powercap, "intel-rapl:1", "package-1", 100_000)
    memory = add_zone(powercap, "intel-rapl:0:0", "dram")
    platform = add_zone(powercap, "intel-rapl:2", "psys")
    (powercap / "intel-rapl").mkdir()  # the control type, without counters
    clock = [0.0]

    def sleep(seconds: float) -> None:  # 0.05 J in half a second: 0.1 W
        clock[0] += seconds
        first.write_text("950000\n")

    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", sleep)
    meter = EnergyMeter(0.5)
    memory.write_text("777777\n")
    platform.write_text("777777\n")
    first.write_text("50000\n")  # wrapped: 100,000 more
    meter.update()
    first.write_text("40000\n")  # wrapped again: 990,000 more
    second.write_text("210000\n")  # 110,000 more
    clock[0] += 4
    use = meter.finish()
    expected = {"energy_j": 1.2, "energy_idle_w": 0.1, "energy_idle_fraction": 0.1 * 4 / 1.2}
    assert use == pytest.approx(expected)


def test_missing_energy_has_a_reason(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no counter of a processor package" in EnergyMeter(0).finish()["energy_missing"]
    counter = add_zone(powercap, "intel-rapl:0", "package-0")
    meter = EnergyMeter(0)
    counter.unlink()
    assert meter.finish()["energy_missing"] == f"{counter}: No such file or directory"
    counter.mkdir()  # also root cannot read it
    assert EnergyMeter(0).finish()["energy_missing"] == f"{counter}: Is a directory"
    counter.rmdir()
    counter.write_text("busy\n")
    assert EnergyMeter(0).finish()["energy_missing"] == f"{counter} holds no number: 'busy'"
    monkeypatch.setattr(energy, "POWERCAP_FOLDER", str(powercap / "none"))
    assert "none is missing" in EnergyMeter(0).finish()["energy_missing"]


def test_energy_per_event_covers_all_passes() -> None:
    values = {"payload_wall_s": 2.0, "payload_user_s": 1.0, "payload_sys_s": 0.0}
    values |= {"setup_wall_s": 0.0, "setup_cpu_s": 0.0, "energy_j": 30.0}
    derive = execution_record.derive_metrics
    assert "energy_per_event_j" not in derive(values)
    derived = derive({**values, "events_read": 100, "passes_done": 3})
    assert derived["energy_per_event_j"] == pytest.approx(0.1)


def test_cores_without_model_or_clock_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["processor\t: 0", "CPU implementer\t: 0x41", "CPU variant\t: 0x3", "CPU part\t: 0xd0c"]
    assert (
        node_state.find_cpu_model([*lines, *lines]) == "implementer 0x41, part 0xd0c, variant 0x3"
    )
    assert node_state.find_cpu_model(["model name\t: EPYC", *lines]) == "EPYC"
    assert node_state.find_cpu_model([]) is None
    files = {"/proc/cpuinfo": "cpu MHz\t\t: Unknown\n"}  # as Linux may say since 6.14
    monkeypatch.setattr(node_state, "read_text", lambda path: files.get(path, ""))
    assert node_state.take_snapshot(Cgroup())["mhz"] is None


def test_huge_pages_are_those_of_the_process() -> None:
    setting = process_stats.read_text("/sys/kernel/mm/transparent_hugepage/enabled")
    code = """if True:
        import mmap, sys
        memory = mmap.mmap(-1, 8 << 20, mmap.MAP_PRIVATE)
        if sys.argv[1]:
            memory.madvise(mmap.MADV_HUGEPAGE)
        memory[:] = b"x" * len(memory)
        print(flush=True)
        sys.stdin.read()
    """
    can_ask = "[madvise]" in setting or "[always]" in setting
    with subprocess.Popen(
        [sys.executable, "-c", code, "ask" if can_ask else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        size = process_stats.read_huge_page_bytes(process.pid)
        process.stdin.close()
    assert size is not None
    assert bool(size) == can_ask
    assert process_stats.read_huge_page_bytes(process.pid) is None
