"""Conversion between dataclasses and JSON documents, by the types of their fields.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import json
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")

#: A mistake: keys that lead to the value, as text, and the description.
Problem = Tuple[str, str]
#: Converts a value and adds its mistakes, with keys relative to the value.
Parser = Callable[[Any, List[Problem]], Any]

_UNIONS = (Union, getattr(types, "UnionType", Union))
#: Types of single values -> types of their JSON values, and their description.
_SCALARS: Dict[Any, Tuple[Tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
}


def decode_json(text: Union[str, bytes], **options: Any) -> Any:
    """Parse JSON that others wrote.

    Args:
        text: the document.
        options: of :func:`json.loads`.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def measure_depth(document: Any) -> int:
    """Count the levels of lists and dicts within each other."""
    depth, level = 0, [document]
    while level := [item for item in level if isinstance(item, (list, dict))]:
        depth += 1
        level = [
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


class DocumentError(ValueError):
    """A document that does not fit its dataclass; ``problems`` lists all mistakes with their keys."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RepeatedKeyError(ValueError):
    """JSON in which an object has a key twice, of which a reader would silently take one."""


def refuse_repeated_keys(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    """Make a dict of an object's members.

    Raises:
        RepeatedKeyError: a key is repeated.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"duplicate key {repeated[:100]!r} in one object")
    return members


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which Python reads though JSON has none.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is not valid JSON; omit unknown values")


def load_json(text: Union[str, bytes]) -> Any:
    """Load JSON that people or other programs hand in.

    Raises:
        ValueError: not JSON, or a :class:`RepeatedKeyError`.
    """
    return decode_json(text, object_pairs_hook=refuse_repeated_keys, parse_constant=refuse_constant)


def format_json(item: Any, **options: Any) -> str:
    """Format dataclasses as JSON; enums become their values, and paths text.

    Args:
        item: a dataclass, or a list or dict with some.
        options: of :func:`json.dumps`.
    """
    return json.dumps(item, default=_encode, **options)


def parse_json(kind: Type[T], text: Union[str, bytes]) -> T:
    """Parse JSON to a dataclass.

    Raises:
        ValueError: not JSON, or a :class:`RepeatedKeyError` or :class:`DocumentError`.
    """
    return parse_document(kind, load_json(text))


def parse_document(kind: Type[T], document: Any) -> T:
    """Convert a document to a dataclass, or to any other type that its fields may have.

    Raises:
        DocumentError: a value has another type, or a key is unknown or missing.
    """
    problems: List[Problem] = []
    parse: Parser = _make_parser(cast(Any, kind))
    item: T = parse(document, problems)
    if problems:
        raise DocumentError([f"{key or 'document'}: {text}" for key, text in problems])
    return item


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} has no form in JSON")


@lru_cache(maxsize=None)
def _make_parser(kind: Any) -> Parser:
    """Make the parser of a type that a field may have."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, _problems: value
    if origin in _UNIONS:
        return _make_union_parser(arguments)
    if is_dataclass(kind):
        return _make_fields_parser(kind)
    if origin in (tuple, list, Sequence):
        return _make_sequence_parser(origin, arguments)
    if origin in (dict, Mapping):
        return _make_mapping_parser(*arguments)
    if issubclass(kind, Enum):
        return _make_enum_parser(kind)
    if issubclass(kind, PurePath):
        parse_text = _make_parser(str)
        return lambda value, problems: kind(parse_text(value, problems) or ".")
    return _make_scalar_parser(*_SCALARS[kind])


def _make_scalar_parser(kinds: Tuple[type, ...], description: str) -> Parser:
    def parse(value: Any, problems: List[Problem]) -> Any:
        # To Python, true is a number, but its type is another.
        return value if type(value) in kinds else _refuse(value, description, problems)

    return parse


def _make_enum_parser(kind: Type[Enum]) -> Parser:
    members = {member.value: member for member in kind}
    description = f"one of {', '.join(map(str, members))}"

    def parse(value: Any, problems: List[Problem]) -> Any:
        is_known = isinstance(value, (str, int)) and value in members
        return members[value] if is_known else _refuse(value, description, problems)

    return parse


def _make_union_parser(arguments: Sequence[Any]) -> Parser:
    """Make the parser of an optional type, or of several types of single values."""
    members = [member for member in arguments if member is not type(None)]
    parse_first = _make_parser(members[0])
    kinds = {kind for member in members[1:] for kind in _SCALARS[member][0]}
    if len(members) < len(arguments):
        kinds.add(type(None))

    def parse(value: Any, problems: List[Problem]) -> Any:
        return value if type(value) in kinds else parse_first(value, problems)

    return parse


def _make_fields_parser(kind: Any) -> Parser:
    hints = get_type_hints(kind)
    parsers = {field.name: _make_parser(hints[field.name]) for field in fields(kind)}
    required = [
        field.name for field in fields(kind) if field.default is field.default_factory is MISSING
    ]

    def parse(value: Any, problems: List[Problem]) -> Any:
        if type(value) is not dict:
            return _refuse(value, "an object", problems)
        values, before = {}, len(problems)
        for name, member in value.items():
            if name in parsers:
                values[name] = _parse_member(parsers[name], member, name, problems)
            else:
                problems.append((name, "unknown key"))
        problems += [(name, "is missing") for name in required if name not in value]
        return kind(**values) if len(problems) == before else None

    return parse


def _make_sequence_parser(origin: Any, arguments: Sequence[Any]) -> Parser:
    make = list if origin is list else tuple
    parsers = [_make_parser(kind) for kind in arguments if kind is not Ellipsis]
    length = len(arguments) if origin is tuple and arguments[-1] is not Ellipsis else None

    def parse(value: Any, problems: List[Problem]) -> Any:
        if not isinstance(value, (list, tuple)):
            return _refuse(value, "a list", problems)
        if length not in (None, len(value)):
            return _refuse(value, f"a list of {length} values", problems)
        return make(
            _parse_member(parsers[index if length else 0], member, index, problems)
            for index, member in enumerate(value)
        )

    return parse


def _make_mapping_parser(key_kind: Any, value_kind: Any) -> Parser:
    parse_value = _make_parser(value_kind)

    def parse(value: Any, problems: List[Problem]) -> Any:
        if type(value) is not dict:
            return _refuse(value, "an object", problems)
        return {
            key_kind(name): _parse_member(parse_value, member, name, problems)
            for name, member in value.items()
        }

    return parse


def _parse_member(parse: Parser, value: Any, name: Union[str, int], problems: List[Problem]) -> Any:
    """Parse a part of a value, and put its key or index in front of the keys of its mistakes."""
    before = len(problems)
    parsed = parse(value, problems)
    for number in range(before, len(problems)):
        key, text = problems[number]
        separator = "" if not key or key.startswith("[") else "."
        prefix = f"[{name}]" if isinstance(name, int) else name
        problems[number] = f"{prefix}{separator}{key}", text
    return parsed


def _refuse(value: Any, expected: str, problems: List[Problem]) -> None:
    problems.append(("", f"expected {expected}, not {value!r}"))
