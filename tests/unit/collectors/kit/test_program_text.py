"""Tests of program text in pages of a process' own."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from captured_runs import run_captured

from treehammer.collectors.kit.treehammer_kit import program_text

KIT = Path(program_text.__file__).parents[1]
MAPS = """\
5000-6000 r--p 00000000 fe:00 1   /lib/libhot.so
6000-9000 r-xp 00001000 fe:00 1   /lib/libhot.so
9000-a000 rw-p 00004000 fe:00 1   /lib/libhot.so
a000-b000 r--p 00000000 fe:00 2   /data/events.root
b000-c000 r-xs 00000000 fe:00 3   /lib/shared
c000-d000 r-xp 00000000 00:00 0   [vdso]
d000-e000 r-xp 00000000 00:00 0
10000000-14000000 r-xp 00000000 fe:00 4   /lib/libCling.so
"""
#: Moves its text, and prints the bytes, the mappings of text before and after, and what libraries do.
SCRIPT = """\
import ctypes, hashlib, json, re
from treehammer_kit.program_text import move_program_text

def list_text():
    with open("/proc/self/smaps") as stream:
        blocks = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", stream.read())
    return [
        {"file": block.split("\\n")[0].split()[5:], **dict(re.findall(r"(\\w+): +(\\d+) kB", block))}
        for block in blocks if " r-xp " in block and "[v" not in block.split("\\n")[0]
    ]

before = list_text()
size = move_program_text()
print(json.dumps([size, before, list_text(), hashlib.sha256(b"").hexdigest(), abs(-3)]))
"""


def test_text_and_constants_of_libraries_are_listed() -> None:
    mappings = program_text.list_library_mappings(MAPS.splitlines(keepends=True))
    assert [(mapping.start, mapping.size) for mapping in mappings] == [
        (0x5000, 0x1000),
        (0x6000, 0x3000),
    ]


def test_process_runs_on_from_pages_of_its_own() -> None:
    done = run_captured([sys.executable, "-c", SCRIPT], env={"PYTHONPATH": str(KIT)}, check=True)
    size, before, after, digest, number = json.loads(done.stdout)
    assert digest.startswith("e3b0c442")
    assert number == 3
    text = 1024 * sum(int(mapping["Size"]) for mapping in before)
    assert 0 < text < size
    assert all(mapping["file"] and mapping["Anonymous"] == "0" for mapping in before)
    # By the kernel's account, every page of text belongs to this process alone.
    assert all(mapping["Anonymous"] == mapping["Size"] for mapping in after)
    assert not any(mapping["file"] or mapping.get("AnonHugePages") != "0" for mapping in after)


@pytest.mark.parametrize("refused", ["mmap", "mprotect", "mremap"])
def test_node_that_refuses_leaves_the_text_where_it_is(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    freed: list[Any] = []
    copy = ctypes.create_string_buffer(1 << 16)

    def answer(name: str, value: Any, failed: Any) -> Any:
        return lambda *_: failed if name == refused else value

    libc = SimpleNamespace(
        mmap=answer("mmap", ctypes.addressof(copy), program_text._MAP_FAILED),
        madvise=lambda *_: 0,
        mprotect=answer("mprotect", 0, -1),
        mremap=answer("mremap", 0, program_text._MAP_FAILED),
        munmap=lambda *arguments: freed.append(arguments),
    )
    source = ctypes.create_string_buffer(64)
    mapping = program_text._Mapping(ctypes.addressof(source), 64, 1)
    monkeypatch.setattr(program_text, "_load_libc", lambda: libc)
    monkeypatch.setattr(program_text, "list_library_mappings", lambda _: [mapping])
    assert program_text.move_program_text() == 0
    assert len(freed) == (refused != "mmap")
