"""Libraries of compiled loops: their keys, what finds them, and machines without a compiler."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from treehammer.collectors.kit.treehammer_kit import loop_libraries
from treehammer.collectors.kit.treehammer_kit.loop_libraries import LoopSource, find_libraries
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadTask

TASK = PayloadTask("timed", "events", [], [], 1, 1, 1.0, 0, 1.0, {}, ".")


@pytest.fixture
def loop(tmp_path: Path) -> LoopSource:
    """A loop that includes a header of its test."""
    folder = tmp_path / "payload"
    folder.mkdir()
    (folder / "analysis.h").write_text("int cut = 1;")
    (folder / "read.py").write_text("print()\n")
    return LoopSource('#include "analysis.h"\nvoid read();', "read", "Pass", False, str(folder))


@pytest.fixture
def built(tmp_path: Path, loop: LoopSource, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the loop's libraries, known to this process."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    for path in loop_libraries.library_paths(str(folder), loop):
        Path(path).touch()
    (folder / loop_libraries.COMPILER_FILE).write_text("g++ 12.2.0 -O2")
    monkeypatch.setenv(loop_libraries.LIBRARIES_VARIABLE, str(folder))
    return folder


def test_key_depends_on_all_that_the_compiler_reads(loop: LoopSource) -> None:
    keys = {loop.key, replace(loop, code=loop.code + " ").key, replace(loop, function="run").key}
    assert len(keys) == 3
    (Path(loop.folder) / "read.py").write_text("print(1)\n")  # no source of the loop
    assert loop.key in keys
    (Path(loop.folder) / "analysis.h").write_text("int cut = 2;")
    assert loop.key not in keys


def test_libraries_are_found_with_their_compiler(built: Path, loop: LoopSource) -> None:
    libraries = find_libraries(TASK, loop)
    assert libraries is not None
    assert libraries.compiler == "g++ 12.2.0 -O2"
    assert Path(libraries.loop).parent == built


@pytest.mark.parametrize("lacking", ["kit", "loop", "compiler", "variable", "code", "imports"])
def test_incomplete_libraries_are_not_used(
    built: Path, loop: LoopSource, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    task = TASK
    if lacking == "variable":
        monkeypatch.delenv(loop_libraries.LIBRARIES_VARIABLE)
    elif lacking == "code":
        loop = replace(loop, code="")
    elif lacking == "imports":
        task = replace(TASK, imports=["uproot"])
    else:
        next(built.glob(f"{lacking}*")).unlink()
    assert find_libraries(task, loop) is None


def test_message_of_a_compiler_names_the_line_of_the_script(
    loop: LoopSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(loop.folder) / "read.py"
    script.write_text(f"import treehammer_kit\n\ntreehammer_kit.run('''{loop.code}''')\n")
    monkeypatch.setattr("sys.argv", [str(script)])
    assert f'#line 3 "read.py"\n{loop.code}\n' in loop.write_source()


@pytest.mark.parametrize(
    ("programs", "reason"),
    [((), r"there is no compiler \(g\+\+, c\+\+, clang\+\+\)"), (("c++",), "no root-config")],
)
def test_machine_without_compiler_leaves_the_loop_to_cling(
    tmp_path: Path,
    loop: LoopSource,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: tuple[str, ...],
    reason: str,
) -> None:
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert loop_libraries.build_libraries(str(tmp_path), TASK, loop) == {"folder": ""}
    message = capsys.readouterr().err
    assert message.startswith("treehammer_kit: the loop is compiled by cling: ")
    assert re.search(reason, message)


def test_only_libraries_that_no_job_used_for_long_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    for name, days in (("loop-old.so", 61), ("kit.so.1.tmp", 61), ("loop-used.so", 59)):
        (folder / name).touch()
        then = time.time() - days * 86400
        os.utime(folder / name, (then, then))
    loop_libraries._remove_old(str(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["loop-used.so"]
