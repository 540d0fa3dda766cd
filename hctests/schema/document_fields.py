"""Types of keys that several kinds of TOML documents have."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    AfterValidator,
    ByteSize,
    PlainValidator,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from treehammer.hctests.schema.document_problems import NAME_PATTERN

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
            f'{value!r} is invalid (expected a number of bytes, or text such as "10 TB")'
        )
    return int(count)


def _format_scalar(value: object) -> str:
    """Convert text, a number, true or false to text as typed on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise invalid_value(f"{value!r} is wrong (expected text, a number, true or false)")
    return str(value)


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
