"""Payloads whose loops the worker lets compile, and where their libraries lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from treehammer.collectors.job_spec import ExecutionSpec, PayloadSpec, SoftwareRequest
from treehammer.collectors.worker.run import node_commands

KIT_LOOP = "import treehammer_kit\ntreehammer_kit.run('')\n"


@pytest.fixture
def spec(tmp_path: Path) -> ExecutionSpec:
    """A timed execution of a release in the cache of software."""
    location = tmp_path / "software" / "root-6.40.00"
    location.mkdir(parents=True)
    software = SoftwareRequest("6.40.00", "wheel", "6.40.00", str(location))
    return ExecutionSpec(1, 1, "timed", {}, software, (), "events", 1, 7, {})


def make_context(folder: Path, kind: str = "python", text: str = KIT_LOOP, **job: Any) -> Any:
    entry = "read.C" if kind == "macro" else "read.py"
    (folder / entry).write_text(text)
    payload = PayloadSpec(folder=".", entry=entry, kind=kind, settings={}, metrics={})
    return SimpleNamespace(
        job=SimpleNamespace(load=None, payload_of=lambda _spec: payload, **job),
        locate_payload=lambda _spec: str(folder),
        output=str(folder / "output"),
        loops={},
    )


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("python", KIT_LOOP, True),
        ("python", "import uproot\n", False),
        ("macro", "void read() {}", True),
        ("executable", KIT_LOOP, False),
    ],
)
def test_only_payloads_of_the_kit_are_compiled(
    tmp_path: Path, spec: ExecutionSpec, kind: str, text: str, expected: bool
) -> None:
    context = make_context(tmp_path, kind, text)
    assert node_commands.has_loop(context, spec) is expected
    assert not node_commands.has_loop(context, replace(spec, kind="checksum"))
    without = replace(spec, software=replace(spec.software, provider="none"))
    assert not node_commands.has_loop(context, without)


def test_releases_share_libraries_and_other_builds_keep_them_in_the_job(
    tmp_path: Path, spec: ExecutionSpec
) -> None:
    context = make_context(tmp_path)
    assert node_commands.locate_base(context, spec) == str(tmp_path / "software" / "loops")
    own = str(tmp_path / "output" / "work" / "loops")
    build = replace(spec, software=replace(spec.software, provider="path"))
    assert node_commands.locate_base(context, build) == own
    (tmp_path / "software" / "loops").rmdir()
    (tmp_path / "software" / "loops").touch()  # no folder can be made
    assert node_commands.locate_base(context, spec) == own


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("""echo '{"values": {"folder": "/there"}}' > "$TREEHAMMER_RESULT" """, "/there"),
        ("exit 1", ""),
        ("""echo '[]' > "$TREEHAMMER_RESULT" """, ""),
    ],
)
def test_libraries_are_built_once_for_each_job(
    tmp_path: Path, spec: ExecutionSpec, script: str, expected: str
) -> None:
    context = make_context(tmp_path)
    context.signals = SimpleNamespace(raise_if_stopped=lambda _phase: None)
    (tmp_path / "output" / "logs").mkdir(parents=True)
    setup: Any = SimpleNamespace(
        build_command=lambda _kind, _entry, _variables: ["sh", "-c", script],
        env={"PATH": "/usr/bin:/bin"},
    )
    assert not node_commands.is_loop_built(context, spec)
    node_commands.build_loop(context, spec, setup, str(tmp_path), {})
    assert node_commands.is_loop_built(context, spec)
    assert node_commands.find_loop_libraries(context, spec) == expected
    assert not node_commands.is_loop_built(context, replace(spec, variant={"format": "rntuple"}))
