"""Text of a limited length on Oracle.  It is history, and never changes."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import oracle
from sqlalchemy.types import TypeEngine, UserDefinedType

#: Bytes of the longest VARCHAR2, unless a server was set up otherwise (MAX_STRING_SIZE).
MOST_BYTES = 4000
#: Bytes of the longest character in UTF-8.
_WIDEST = 4


class _Bytes(UserDefinedType[str]):
    """A length in bytes, where SQLAlchemy would give characters."""

    cache_ok = True

    def __init__(self, length: int) -> None:
        self.length = length

    def get_col_spec(self, **_options: Any) -> str:
        return f"VARCHAR2({self.length} BYTE)"

    @property
    def python_type(self) -> type[str]:
        return str

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        return sa.String().coerce_compared_value(op, value)


def oracle_text(length: int) -> TypeEngine[str]:
    """Text of at most so many characters, and of at most :data:`MOST_BYTES`.

    VARCHAR2(4000 CHAR) would hold no more than 4000 bytes either, or else, on servers with longer
    texts, count with 16,000 bytes in an index, which none can have.
    """
    return _Bytes(MOST_BYTES) if length * _WIDEST > MOST_BYTES else oracle.VARCHAR2(length)
