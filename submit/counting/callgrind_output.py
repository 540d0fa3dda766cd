"""Parser of callgrind's output: instructions by library and function.

The format: https://valgrind.org/docs/manual/cl-format.html. Only self cost is summed, so that the
sum over all functions is the total, which callgrind states as well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from treehammer.errors import CountingError

#: Library of code that was compiled while the process ran.
COMPILED_AT_RUN_TIME = "(compiled at run time)"
#: Functions without a symbol, whose addresses differ from run to run.
UNNAMED = "(unnamed)"

_NAME = re.compile(r"\((\d+)\)(?: (.*))?")
_COST_START = frozenset("0123456789+-*")
#: Versions after ``.so``, and the hash by which a wheel renames the libraries that it contains.
_LIBRARY_VERSION = re.compile(r"(?:-[0-9a-f]{8})?(\.so)[.\d]*$")


@dataclass(frozen=True)
class CallgrindProfile:
    """Instructions by (library, function)."""

    instructions: Mapping[tuple[str, str], int]

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(self.instructions.values())


def parse_callgrind(lines: Iterable[str], where: str) -> CallgrindProfile:
    """Parse the lines of a ``callgrind.out`` file, which are read once.

    Raises:
        CountingError: the costs differ from the total that callgrind states.
    """
    parser = _CallgrindParser()
    for line in lines:
        parser.add_line(line.rstrip("\n"))
    if parser.stated_total is None or parser.stated_total != sum(parser.costs.values()):
        raise CountingError(
            f"callgrind states {parser.stated_total} instructions, its functions sum to "
            f"{sum(parser.costs.values())}",
            where=where,
            hint="The file is incomplete, or of an unknown version of valgrind.",
        )
    return CallgrindProfile(dict(parser.costs))


@dataclass
class _CallgrindParser:
    """State of the parser: names by their numbers, the current function, and the costs."""

    costs: Counter[tuple[str, str]] = field(default_factory=Counter)
    stated_total: int | None = None
    _libraries: dict[str, str] = field(default_factory=dict)
    _functions: dict[str, str] = field(default_factory=dict)
    _library: str = ""
    _function: str = ""
    _skips_cost: bool = False

    def add_line(self, line: str) -> None:
        if line[:1] in _COST_START:
            self._add_cost(line)
            return
        key, equals, value = line.partition("=")
        if equals:
            self._add_specification(key, value)
        elif line.startswith("totals:"):
            self.stated_total = int(line.split()[1])

    def _add_cost(self, line: str) -> None:
        if self._skips_cost:  # inclusive cost of a call
            self._skips_cost = False
            return
        fields = line.split()
        if len(fields) > 1:
            self.costs[self._library, self._function] += int(fields[1])

    def _add_specification(self, key: str, value: str) -> None:
        if key == "ob":
            self._library = shorten_library(_resolve_name(self._libraries, value))
        elif key == "fn":
            self._function = _drop_address(_resolve_name(self._functions, value))
        elif key == "cob":
            _resolve_name(self._libraries, value)
        elif key == "cfn":
            _resolve_name(self._functions, value)
        elif key == "calls":
            self._skips_cost = True


def _resolve_name(names: dict[str, str], text: str) -> str:
    """Resolve ``(number) name``, which defines a name, or ``(number)``, which refers to it."""
    match = _NAME.fullmatch(text)
    if match is None:
        return text
    number, name = match.groups()
    if name is not None:
        names[number] = name
    return names.get(number, "?")


def _drop_address(function: str) -> str:
    return UNNAMED if function.startswith("0x") else function


def shorten_library(path: str) -> str:
    """Shorten a library's path to the part of its name that all releases share."""
    name = path.rpartition("/")[2]
    return _LIBRARY_VERSION.sub(r"\1", name) if name not in ("", "???") else COMPILED_AT_RUN_TIME
