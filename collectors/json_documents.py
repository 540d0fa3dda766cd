"""Conversion between dataclasses and JSON documents, by the types of their fields.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Dict, List, Type, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_UNIONS = (Union, getattr(types, "UnionType", Union))
#: Types of single values -> Python types of their JSON values, and their description.  To Python,
#: true is a number.
_SCALARS: Dict[Any, Any] = {
    str: (str, "text"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    bool: (bool, "true or false"),
}


class DocumentError(ValueError):
    """A document that does not fit its dataclass; ``problems`` lists all mistakes with their keys."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


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
        ValueError: not JSON, or a :class:`DocumentError`.
    """
    return parse_document(kind, json.loads(text))


def parse_document(kind: Type[T], document: Any) -> T:
    """Convert a document to a dataclass, or to any other type that its fields may have.

    Raises:
        DocumentError: a value has another type, or a key is unknown or missing.
    """
    problems: List[str] = []
    item: T = _parse(kind, document, "", problems)
    if problems:
        raise DocumentError(problems)
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


def _parse(kind: Any, value: Any, key: str, problems: List[str]) -> Any:
    """Convert a value, or add its problems under its key."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        if value is None and type(None) in arguments:
            return None
        members = [member for member in arguments if member is not type(None)]
        # Of several types only single values and None occur.
        kind = next((member for member in members if _fits(member, value)), members[0])
        return _parse(kind, value, key, problems)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _parse_fields(kind, value, key, problems)
    if origin in (tuple, list, Sequence):
        return _parse_sequence(origin, arguments, value, key, problems)
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            return _refuse(value, key, "an object", problems)
        key_kind, value_kind = arguments
        return {
            key_kind(name): _parse(value_kind, member, _join(key, name), problems)
            for name, member in value.items()
        }
    if issubclass(kind, Enum):
        values = [member.value for member in kind]
        if value not in values:
            return _refuse(value, key, f"one of {', '.join(map(str, values))}", problems)
        return kind(value)
    if issubclass(kind, PurePath):
        return kind(_parse(str, value, key, problems) or ".")
    return value if _fits(kind, value) else _refuse(value, key, _SCALARS[kind][1], problems)


def _parse_fields(kind: Any, value: Any, key: str, problems: List[str]) -> Any:
    if not isinstance(value, dict):
        return _refuse(value, key, "an object", problems)
    hints = _field_types(kind)
    problems += [f"{_join(key, name)}: unknown key" for name in value if name not in hints]
    count = len(problems)
    values = {
        name: _parse(hint, value[name], _join(key, name), problems)
        for name, hint in hints.items()
        if name in value
    }
    problems += [
        f"{_join(key, field.name)}: is missing"
        for field in fields(kind)
        if field.name in hints
        and field.name not in value
        and field.default is field.default_factory is MISSING
    ]
    return kind(**values) if len(problems) == count else None


def _parse_sequence(
    origin: Any, arguments: Sequence[Any], value: Any, key: str, problems: List[str]
) -> Any:
    if not isinstance(value, (list, tuple)):
        return _refuse(value, key, "a list", problems)
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            return _refuse(value, key, f"a list of {len(arguments)} values", problems)
        kinds: Sequence[Any] = arguments
    else:
        kinds = [arguments[0]] * len(value)
    members = (
        _parse(kinds[index], member, f"{key}[{index}]", problems)
        for index, member in enumerate(value)
    )
    return list(members) if origin is list else tuple(members)


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a type is one of single values, and has this value."""
    return (
        kind in _SCALARS
        and isinstance(value, _SCALARS[kind][0])
        and isinstance(value, bool) == (kind is bool)
    )


def _refuse(value: Any, key: str, expected: str, problems: List[str]) -> None:
    problems.append(f"{key or 'document'}: expected {expected}, not {value!r}")


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


@lru_cache(maxsize=None)
def _field_types(kind: Any) -> Dict[str, Any]:
    """Return the types of the fields that a dataclass is made from, by their names."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}
