"""Causes of crashes, as the messages of ROOT, compilers and the C library name them."""

from __future__ import annotations

import re
from typing import Iterable, Iterator, List, Optional, Pattern

#: Frames of a crash that a message names.
MAX_FRAMES = 3
#: Longest line that a message quotes, in characters.
MAX_LINE = 300

#: Lines that name the cause, the most specific first; the last such line of the output counts.
_DECISIVE_LINES = (
    re.compile(r"^Fatal in <.*", re.MULTILINE),
    re.compile(r"^(?:  )?what\(\): .*", re.MULTILINE),
    re.compile(r"^[\w.]*(?:Error|Exception): .*|^[\w.]+Error$", re.MULTILINE),
    # Of the linker, and of assert().
    re.compile(
        r"^\S+: (?:error while loading shared |\S+: version `|.*Assertion `).*", re.MULTILINE
    ),
)
_ROOT_ERROR = re.compile(r"^(?:Sys)?Error in <.*", re.MULTILINE)
#: Messages of the C library on a damaged heap.
_HEAP_DAMAGE = re.compile(
    r"(?m)^(?:free|malloc\w*|realloc|munmap_chunk|double free|corrupted|\*+ stack smashing)\b.*"
)
_FRAME = re.compile(r"^(?P<library>\S+?)\((?P<symbol>_Z\w+)\+0x[0-9a-f]+\) ?\[", re.MULTILINE)
#: Libraries whose frames do not show the cause: the interpreters' and the C library's.
_FOREIGN_LIBRARY = re.compile(
    r"/(?:libc|libpthread|libpython|python|libstdc\+\+|libCling|libcpp|libCppInterOp)[^/]*$"
)
#: Message of a compiler with its file and line: gcc, clang and cling.
_COMPILER_ERROR = re.compile(r"^\S[^\n:]*:\d+(?::\d+)?: (?:fatal )?error: .*", re.MULTILINE)
MISSING_HEADER = re.compile(r"error: '?[\w./+-]+'?(?: file not found|: No such file)")
_MISSING_DICTIONARY = re.compile(r"no dictionary for class (\S+) is available")


def find_compiler_error(log: str) -> str:
    """Find the first error of a compiler, with its file and line; '' if there is none.

    Later errors often follow from the first.
    """
    match = _COMPILER_ERROR.search(log)
    return match[0].strip()[:MAX_LINE] if match else ""


def excerpt_compiler_error(log: str, characters: int) -> str:
    """Return the log from the first error of a compiler on; '' if there is none."""
    match = _COMPILER_ERROR.search(log)
    return log[match.start() :][:characters].strip() if match else ""


def describe_crash(log: str) -> str:
    """Describe the cause of a payload's crash in one or two sentences; '' if the log has none."""
    text = _find_last_line(log, _DECISIVE_LINES) or find_compiler_error(log)
    if not text:
        frames = list(_find_frames(log))
        error = _find_last_line(log, (_ROOT_ERROR,))
        text = f"It crashed in {', called by '.join(frames)}." if frames else ""
        if not frames and (damage := _find_last_line(log, (_HEAP_DAMAGE,))):
            text = f"Reading damaged the memory: {damage}"
        text = f"{text} ROOT's last error: {error}".strip() if error else text
    classes = sorted(set(_MISSING_DICTIONARY.findall(log)))
    if text and classes:
        names_text = ", ".join(classes[:MAX_FRAMES]) + (", …" if len(classes) > MAX_FRAMES else "")
        text += (
            f' No dictionary for {names_text}: read branches = "readable", exclude the branch, or load its '
            "library (load in test.toml)."
        )
    return text


def _find_last_line(log: str, patterns: Iterable[Pattern[str]]) -> str:
    """Return the last line that the first successful pattern matches, as a sentence."""
    for pattern in patterns:
        matches = pattern.findall(log)
        if matches:
            line = str(matches[-1]).strip()[:MAX_LINE]
            return line if line.endswith(".") else f"{line}."
    return ""


def _find_frames(log: str) -> Iterator[str]:
    """Yield the innermost C++ functions of a crash, without repetitions."""
    names: List[str] = []
    for match in _FRAME.finditer(log):
        name = demangle_name(match["symbol"])
        if name and name not in names and not _FOREIGN_LIBRARY.search(match["library"]):
            names.append(name)
            yield name
            if len(names) == MAX_FRAMES:
                return


def demangle_name(symbol: str) -> Optional[str]:
    """Return the qualified name of a C++ function, without parameters; None if it is unusual.

    >>> demangle_name("_ZN14TBranchElement10ReadLeavesER7TBuffer")
    'TBranchElement::ReadLeaves'
    """
    remaining = symbol[2:]
    nested = remaining.startswith("N")
    remaining = remaining.lstrip("NKVrL") if nested else remaining
    parts: List[str] = []
    while True:
        size = re.match(r"\d+", remaining)
        if size is None:
            break
        start = size.end()
        parts.append(remaining[start : start + int(size[0])])
        remaining = remaining[start + int(size[0]) :]
        if not nested:
            break
    return "::".join(parts) or None
