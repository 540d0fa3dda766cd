"""Mistakes in TOML documents written by people, reported all at once with file, line and key.

A package that reads such a file provides its models and its checks across keys; positions, common
types of keys and messages are here. ``tomllib`` provides no positions; the tree-sitter grammar does.
It is used for positions only, ``tomllib`` for the content.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin

import tree_sitter_toml
from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    PlainValidator,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from tree_sitter import Language, Node, Parser

from treehammer.errors import InvalidDocumentError, suggest_nearest
from treehammer.toml_documents import parse_toml, write_value

#: Keys and list indices from the document's root to a key or value.
KeyPath = tuple[str | int, ...]

_TOML_LANGUAGE = Language(tree_sitter_toml.language())


def locate_keys(text: str) -> Mapping[KeyPath, int]:
    """Map every table, key and list item of a valid TOML document to its line, from 1."""
    lines: dict[KeyPath, int] = {(): 1}
    counts: dict[KeyPath, int] = {}
    for node in Parser(_TOML_LANGUAGE).parse(text.encode()).root_node.named_children:
        if node.type == "pair":
            _locate_pair(node, (), lines)
        elif node.type in ("table", "table_array_element"):
            _locate_table(node, lines, counts)
    return lines


def find_line(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """Find the line of ``path``, or of the nearest enclosing item that is written out."""
    while path not in lines:
        path = path[:-1]
    return lines[path]


def _locate_table(node: Node, lines: dict[KeyPath, int], counts: dict[KeyPath, int]) -> None:
    header, *children = node.named_children
    # In a list of tables a header refers to the last one so far.
    path: KeyPath = ()
    keys = _split_key(header)
    for number, key in enumerate(keys):
        path = (*path, key)
        if path in counts and number < len(keys) - 1:
            path = (*path, counts[path] - 1)
    if node.type == "table_array_element":
        counts[path] = counts.get(path, 0) + 1
        lines.setdefault(path, header.start_point.row + 1)
        path = (*path, counts[path] - 1)
    for length in range(1, len(path)):  # tables that exist only through headers like this
        lines.setdefault(path[:length], header.start_point.row + 1)
    lines[path] = header.start_point.row + 1
    for child in children:
        if child.type == "pair":
            _locate_pair(child, path, lines)


def _locate_pair(node: Node, above: KeyPath, lines: dict[KeyPath, int]) -> None:
    key, value = node.named_children[0], node.named_children[-1]
    path = above
    for name in _split_key(key):
        path = (*path, name)
        lines.setdefault(path, key.start_point.row + 1)
    _locate_value(value, path, lines)


def _locate_value(node: Node, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    if node.type == "array":
        items = [child for child in node.named_children if child.type != "comment"]
        for index, item in enumerate(items):
            lines[*path, index] = item.start_point.row + 1
            _locate_value(item, (*path, index), lines)
    elif node.type == "inline_table":
        for child in node.named_children:
            if child.type == "pair":
                _locate_pair(child, path, lines)


def _split_key(node: Node) -> tuple[str, ...]:
    """Split a key into its names; ``a."b c"`` has two."""
    if node.type == "dotted_key":
        return tuple(name for child in node.named_children for name in _split_key(child))
    text = (node.text or b"").decode()
    # Quoted keys may contain escapes, which tomllib decodes.
    return (str(tomllib.loads(f"k = {text}")["k"]),) if node.type == "quoted_key" else (text,)


NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_SYNTAX_ERROR = re.compile(
    r"(?P<problem>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|.*)\)"
)

#: Key whose value begins like a number or a word.
_BARE_TEXT = re.compile(r"\s*(?P<key>[\w.-]+)\s*=\s*(?P<text>\w[^\"'\[\]{}#=]*?)\s*(?:#.*)?")


class StrictModel(BaseModel):
    """Base model of a table: unknown keys and values of other types are rejected."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with valid values replaced."""
        return self.model_copy(update=changes)


T = TypeVar("T")
#: A list of TOML, which a frozen model holds as a tuple.
Items = Annotated[tuple[T, ...], Strict(False)]

M = TypeVar("M", bound=BaseModel)
E = TypeVar("E", bound=InvalidDocumentError)


@dataclass(frozen=True)
class DocumentProblem:
    """One mistake: the keys that lead to it, and its description."""

    path: KeyPath
    text: str


#: Models of a document's tables by their keys, without names that people choose: ``sites.doors``.
Tables = Mapping[str, type[BaseModel]]


@cache
def list_tables(model: type[BaseModel], name: str = "") -> Tables:
    """List the tables of a document, of which ``name`` is the one of the model."""
    tables = {name: model}
    for key, field in model.model_fields.items():
        for inner in _list_models(field.annotation):
            tables |= list_tables(inner, f"{name}.{field.alias or key}".lstrip("."))
    return tables


def _list_models(kind: Any) -> list[type[BaseModel]]:
    """List the models in a type such as ``dict[str, Site]``."""
    if hasattr(kind, "model_fields"):
        return [kind]
    return [model for part in get_args(kind) for model in _list_models(part)]


def _find_table(path: KeyPath, tables: Tables) -> str:
    """Find the name of the table with the key at a path."""
    name = ""
    for key in path[:-1]:
        inner = f"{name}.{key}".lstrip(".")
        name = inner if inner in tables else name
    return name


def _list_keys(model: type[BaseModel]) -> list[str]:
    fields = model.model_fields
    return [field.alias or name for name, field in fields.items() if not field.exclude]


#: Maps a path to its line, to sort by, and to the location shown in messages.
LocateKeys = Callable[[KeyPath], tuple[int, str]]


def parse_document(text: str, name: str, error: type[InvalidDocumentError]) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        error: invalid TOML; the message names the line.
    """
    try:
        return parse_toml(text)
    except ValueError as failure:
        match = _SYNTAX_ERROR.fullmatch(str(failure))
        reason = match["problem"] if match else str(failure)
        line = match["line"] if match and match["line"] else str(text.count("\n") + 1)
        problem = f"{name}:{line}: not valid TOML: {reason[:1].lower()}{reason[1:]}"
        problem += _suggest_quotes(text.splitlines()[int(line) - 1 : int(line)])
        raise error("1 mistake", where=name, problems=(problem,)) from failure


def _suggest_quotes(lines: Sequence[str]) -> str:
    """Suggest quotes around a bare text, the most frequent mistake; '' for other lines."""
    match = _BARE_TEXT.fullmatch(lines[0]) if lines else None
    if match is None:
        return ""
    try:
        tomllib.loads(lines[0])
    except ValueError:
        return f'. Text needs quotes: {match["key"]} = "{match["text"]}"'
    return ""  # a repeated key, for example


def make_key_locator(text: str, name: str) -> LocateKeys:
    """Create the locator of a valid document's keys; messages call the document ``name``."""
    lines = locate_keys(text)

    def locate(keys: KeyPath) -> tuple[int, str]:
        line = find_line(lines, keys)
        return line, ": ".join(filter(None, (f"{name}:{line}", format_key_path(keys))))

    return locate


def format_key_path(keys: KeyPath) -> str:
    """Format a path like ``matrix.root``, without list indices."""
    return ".".join(str(key) for key in keys if isinstance(key, str))


def leave_out_consequences(
    problems: Iterable[DocumentProblem], causes: Sequence[DocumentProblem]
) -> list[DocumentProblem]:
    """Leave out problems across tables that only follow from others, mistakes of shape."""
    return [p for p in problems if not any(_problems_overlap(p, cause) for cause in causes)]


def _problems_overlap(problem: DocumentProblem, other: DocumentProblem) -> bool:
    """Return whether both problems have the same path, or one path contains the other."""
    shared = min(len(problem.path), len(other.path))
    return problem.path[:shared] == other.path[:shared]


def combine_problems(
    problems: Iterable[DocumentProblem], where: LocateKeys, name: str, error: type[E]
) -> E:
    """Create one error for all problems, in the order of the file."""
    lines = sorted((*where(problem.path), problem.text) for problem in problems)
    texts = tuple(f"{location}: {text}" for _, location, text in lines)
    count = f"{len(texts)} mistake{'s' if len(texts) > 1 else ''}"
    return error(count, where=name, problems=texts)


def build_document_schema(model: type[BaseModel], name: str) -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of a document, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(),
        "title": f"Treehammer {name}",
    }


def validate_document(
    model: type[M],
    raw: Mapping[str, Any],
    fill_required: Callable[[dict[str, Any]], None],
    context: object = None,
) -> tuple[M, list[DocumentProblem]]:
    """Validate a document; return the model and all problems of shape.

    With problems, the model lacks the invalid parts; ``fill_required`` then supplies missing required
    keys, so that checks across keys are still possible.
    """
    problems: list[DocumentProblem] = []
    valid = dict(raw)
    while True:
        try:
            return model.model_validate(valid, context=context), problems
        except ValidationError as error:
            details = error.errors(include_url=False)
        if not problems:
            # A list of invalid items alone counts as too short as well.
            mistakes = [d for d in details if d["type"] != "too_short" or not d["input"]]
            problems = [_convert_error(detail, list_tables(model)) for detail in mistakes]
            valid = copy.deepcopy(valid)
        for detail in reversed(details):
            _remove_key(valid, _error_path(detail))
        fill_required(valid)


def load_document(
    model: type[M],
    text: str,
    name: str,
    fill_required: Callable[[dict[str, Any]], None],
    check_across: Callable[[M], Iterable[DocumentProblem]],
    error: type[InvalidDocumentError],
    context: object = None,
) -> M:
    """Parse and validate the text of a document, called ``name`` in messages.

    Validators of the model receive ``context``.

    Raises:
        InvalidDocumentError: of the given type, with all problems of shape and across tables.
    """
    document, problems = validate_document(
        model, parse_document(text, name, error), fill_required, context
    )
    problems += leave_out_consequences(check_across(document), problems)
    if problems:
        raise combine_problems(problems, make_key_locator(text, name), name, error)
    return document


def list_problems(model: type[BaseModel], raw: Mapping[str, Any]) -> list[DocumentProblem]:
    """List the problems of shape of a table; paths are relative to it."""
    try:
        model.model_validate(raw)
    except ValidationError as error:
        tables = list_tables(model)
        return [_convert_error(detail, tables) for detail in error.errors(include_url=False)]
    return []


def _error_path(detail: ErrorDetails) -> KeyPath:
    """Return the path of an error, without pydantic's mark for invalid keys."""
    path = detail["loc"]
    return path[:-1] if path[-1] == "[key]" else path


def _remove_key(document: Any, path: KeyPath) -> None:
    """Remove the item at ``path``, if it exists."""
    table = document
    for key in path[:-1]:
        if isinstance(table, dict) and key not in table:
            return  # removed with another mistake
        table = table[key]
    if isinstance(table, list):
        del table[int(path[-1])]
    else:
        table.pop(path[-1], None)


def _convert_error(detail: ErrorDetails, tables: Tables) -> DocumentProblem:
    path, kind = _error_path(detail), detail["type"]
    if kind == "extra_forbidden":
        return DocumentProblem(path, _describe_unknown_key(path, tables))
    if kind == "missing":
        return DocumentProblem(path, "is missing")
    context = dict(detail.get("ctx", {}))
    if isinstance(detail["input"], dict) and _holds_tables(str(path[-1]), tables):
        context["brackets"] = "a list of tables: [[double brackets]]"
    return DocumentProblem(path, _describe_error(kind, detail["input"], context, detail["msg"]))


def _holds_tables(key: str, tables: Tables) -> bool:
    """Return whether the list of a key holds tables."""
    fields = (model.model_fields.get(key) for model in tables.values())
    types = [field.annotation for field in fields if field]
    items = [get_args(kind)[0] for kind in types if get_origin(kind) in (list, tuple)]
    return any("dict[" in str(item) or hasattr(item, "model_fields") for item in items)


def _describe_error(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    """Describe an error and the expected value, from pydantic's error type."""
    limits = {
        "greater_than_equal": f"at least {context.get('ge')}",
        "greater_than": f"more than {context.get('gt')}",
        "less_than_equal": f"at most {context.get('le')}",
        "less_than": f"less than {context.get('lt')}",
    }
    brackets = context.get("brackets", "a list in [brackets]")
    expected = limits | {
        "string_type": "text in quotes",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "list_type": brackets,
        "tuple_type": brackets,
        "too_short": f"at least {context.get('min_length')} item",
        "too_long": f"at most {context.get('max_length')} items",
        "dict_type": "a table",
        "model_type": "a table",
        "literal_error": str(context.get("expected")),
        "string_too_short": "text",
        "string_too_long": f"at most {context.get('max_length')} characters",
        "string_pattern_mismatch": "up to 64 letters, digits, '.', '_' and '-'",
    }
    if kind not in expected:
        return message
    text = write_value(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} is wrong (expected {expected[kind]})"


def _describe_unknown_key(path: KeyPath, tables: Tables) -> str:
    key, table = str(path[-1]), _find_table(path, tables)
    keys = _list_keys(tables[table])
    suggestion = suggest_nearest(key, keys)
    if not suggestion:
        homes = [name for name, model in tables.items() if name and key in _list_keys(model)]
        suggestion = f"; it belongs to [{homes[0]}]" if homes else ""
    where = f" of [{table}]" if table else ""
    return f"unknown key{where} (known: {', '.join(keys)}){suggestion}"


_BYTES = TypeAdapter(ByteSize)


def invalid_value(message: str) -> PydanticCustomError:
    """Create the error of a validator with a message for people."""
    return PydanticCustomError("invalid", "{message}", {"message": message})


def validate_line(value: str) -> str:
    """Accept a line of text without control characters and surrounding space.

    Raises:
        PydanticCustomError: the text is not such a line.
    """
    if not value.isprintable() or value != value.strip():
        raise invalid_value(
            f"{value[:40]!r} has line breaks, control characters or surrounding space"
        )
    return value


def _parse_bytes(value: object) -> int:
    """Convert a number of bytes, or text with a unit."""
    try:
        count = _BYTES.validate_python(value) if isinstance(value, int | str) else -1
    except ValidationError:
        count = -1
    if isinstance(value, bool) or not 0 <= count < 2**63:
        raise invalid_value(
            f'{write_value(value)} is invalid (expected a number of bytes, or text such as "10 TB")'
        )
    return int(count)


def _format_scalar(value: object) -> str:
    """Convert text, a number, true or false to text as typed on the command line."""
    if not isinstance(value, str | int | float):
        raise invalid_value(
            f"{write_value(value)} is wrong (expected text, a number, true or false)"
        )
    return write_value(value) if isinstance(value, bool) else str(value)


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Line = Annotated[str, StringConstraints(max_length=1000), AfterValidator(validate_line)]
FilledLine = Annotated[
    str, StringConstraints(min_length=1, max_length=1000), AfterValidator(validate_line)
]
Bytes = Annotated[
    int,
    PlainValidator(_parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
ScalarText = Annotated[
    str,
    PlainValidator(_format_scalar),
    WithJsonSchema({"type": ["string", "number", "boolean"]}),
]
