"""Mistakes in a TOML document that people write: found by models, told with file, line and key.

Every mistake is named at once.  A room that reads such a file brings its models and the checks that
go across keys; what is the same for all stands here.
"""

from __future__ import annotations

import copy
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from treehammer.errors import MistakesError
from treehammer.hctests import positions
from treehammer.hctests.positions import Path

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|.*)\)")


class Strict(BaseModel):
    """A table whose keys are all known and whose values are of the type they must have."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=MistakesError)


@dataclass(frozen=True)
class Problem:
    """One mistake: the keys that lead to it, and what is wrong."""

    path: Path
    text: str


@dataclass(frozen=True)
class Tables:
    """The tables of a document: name -> its keys, and in which of them the last key of a path is."""

    keys: Mapping[str, tuple[str, ...]]
    of: Callable[[Path], str]


#: Line of the keys that lead somewhere, to sort by, and how people are told that place.
Where = Callable[[Path], tuple[int, str]]


def parse(text: str, shown: str, error: type[MistakesError]) -> dict[str, Any]:
    """The document in a text.

    Raises:
        error: the text is not valid TOML; told with the line.
    """
    try:
        return tomllib.loads(text)
    except ValueError as failure:
        match = _SYNTAX.fullmatch(str(failure))
        what = match["what"] if match else str(failure)
        line = match["line"] if match and match["line"] else str(text.count("\n") + 1)
        problem = f"{shown}:{line}: not valid TOML: {what[:1].lower()}{what[1:]}"
        raise error("1 mistake", where=shown, problems=(problem,)) from failure


def places(text: str, shown: str) -> Where:
    """Where the keys of a valid document stand; it is called ``shown``."""
    lines = positions.locate(text)

    def where(keys: Path) -> tuple[int, str]:
        line = positions.line_of(lines, keys)
        return line, ": ".join(filter(None, (f"{shown}:{line}", dotted(keys))))

    return where


def dotted(keys: Path) -> str:
    """``matrix.root`` for the keys that lead there; places in lists are left out."""
    return ".".join(str(key) for key in keys if isinstance(key, str))


def overlap(one: Problem, other: Problem) -> bool:
    """Whether the two lie at the same keys, or one below the other."""
    shared = min(len(one.path), len(other.path))
    return one.path[:shared] == other.path[:shared]


def all_of(problems: Iterable[Problem], where: Where, shown: str, error: type[E]) -> E:
    """One error for all mistakes, in the order of the file."""
    lines = sorted((*where(problem.path), problem.text) for problem in problems)
    texts = tuple(f"{place}: {text}" for _, place, text in lines)
    count = f"{len(texts)} mistake{'s' if len(texts) > 1 else ''}"
    return error(count, where=shown, problems=texts)


def published(model: type[BaseModel], name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of a document, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": f"Treehammer {name}",
    }


def validate(
    model: type[M], raw: Mapping[str, Any], tables: Tables, mend: Callable[[dict[str, Any]], None]
) -> tuple[M, list[Problem]]:
    """The document as the model, and every mistake of shape in it.

    Where there are mistakes, what remains without the wrong parts, with ``mend`` filling in what the
    model then misses, so that checks that go across keys can still be made.
    """
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    rest = copy.deepcopy(dict(raw))
    for detail in reversed(details):
        _drop(rest, _path(detail))
    mend(rest)
    return model.model_validate(rest), [_problem(detail, tables) for detail in details]


def _path(detail: ErrorDetails) -> Path:
    """The keys that lead to a mistake, without pydantic's mark for one in a key itself."""
    path = detail["loc"]
    return path[:-1] if path[-1] == "[key]" else path


def _drop(document: Any, path: Path) -> None:
    """Take away what ``path`` leads to, if it is there."""
    table = document
    for key in path[:-1]:
        table = table[key]
    if isinstance(table, list):
        del table[int(path[-1])]
    else:
        table.pop(path[-1], None)


def _problem(detail: ErrorDetails, tables: Tables) -> Problem:
    path, kind = _path(detail), detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, _unknown_key(path, tables))
    if kind == "missing":
        return Problem(path, "is missing")
    return Problem(path, _words(kind, detail["input"], detail.get("ctx", {}), detail["msg"]))


def _words(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """What is wrong and what was expected, from pydantic's kind of error."""
    limits = {
        "greater_than_equal": f"at least {context.get('ge')}",
        "greater_than": f"more than {context.get('gt')}",
        "less_than_equal": f"at most {context.get('le')}",
        "less_than": f"less than {context.get('lt')}",
    }
    expected = limits | {
        "string_type": "text in quotes",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": "a list of tables: [[double brackets]]"
        if isinstance(value, dict)
        else "a list in [brackets]",
        "dict_type": "a table",
        "model_type": "a table",
        "literal_error": str(context.get("expected")),
        "string_too_short": "text",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "string_pattern_mismatch": "up to 64 letters, digits, '.', '_' and '-'",
    }
    if kind not in expected:
        return message
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} is wrong (expected {expected[kind]})"


def _unknown_key(path: Path, tables: Tables) -> str:
    key, table = str(path[-1]), tables.of(path)
    known = tables.keys[table]
    near = nearest(key, known)
    if not near:
        homes = [name for name, keys in tables.keys.items() if name and key in keys]
        near = f"; it belongs into [{homes[0]}]" if homes else ""
    where = f" of [{table}]" if table else ""
    return f"unknown key{where} (known: {', '.join(known)}){near}"


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``; did you mean 'x'?`` with the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
