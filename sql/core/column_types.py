"""Column types that store the same values in SQLite, PostgreSQL and Oracle."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.evidence import Evidence
from treehammer.sql.core.measurement_columns import decode_numbers

#: Bytes of the longest VARCHAR2 on a server with the default MAX_STRING_SIZE.
MAX_VARCHAR2_BYTES = 4000
_MAX_UTF8_BYTES_PER_CHAR = 4
#: Maximum characters of a text, each of which may take several bytes.
MAX_TEXT_CHARS = MAX_TEXT // 8
# It writes floats with all their digits.
_JSON_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class _Real(TypeDecorator[float]):
    """Double precision on every backend; Oracle's DOUBLE PRECISION is a decimal type."""

    impl = sa.Double
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Use BINARY_DOUBLE on Oracle."""
        if dialect.name == "oracle":
            # Imported here: the dialect takes long to load, and other databases do not need it.
            from sqlalchemy.dialects import oracle

            return dialect.type_descriptor(oracle.BINARY_DOUBLE())
        return super().load_dialect_impl(dialect)


REAL: TypeEngine[float] = _Real()


class StoredText(TypeDecorator[str]):
    """Text of a limited length that sorts by code points. An empty string is stored as NULL."""

    impl = sa.String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Use code-point order on PostgreSQL and a length that fits into VARCHAR2 on Oracle."""
        kind = self.impl_instance
        if dialect.name == "oracle" and isinstance(kind, sa.String) and kind.length:
            # VARCHAR2(4000 CHAR) holds no more than 4000 bytes either, except on servers with
            # extended strings, where an index would count 16,000 bytes and exceed Oracle's limit.
            if kind.length * _MAX_UTF8_BYTES_PER_CHAR > MAX_VARCHAR2_BYTES:
                return dialect.type_descriptor(_ByteText(MAX_VARCHAR2_BYTES))
            from sqlalchemy.dialects import oracle

            return dialect.type_descriptor(oracle.VARCHAR2(kind.length))
        if dialect.name == "postgresql" and isinstance(kind, sa.String) and kind.length:
            return dialect.type_descriptor(sa.String(kind.length, collation="C"))
        return super().load_dialect_impl(dialect)

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Replace an empty string by NULL."""
        return value or None


class LongText(StoredText):
    """Text of any length: a large object on Oracle, never indexed. An empty string is NULL."""

    impl = sa.Text
    cache_ok = True


class NumberList(TypeDecorator[list[Any]]):
    """List of numbers, stored as JSON text. An empty list is not NULL."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[Any] | None, dialect: Dialect) -> str | None:
        """Encode the list as JSON."""
        return None if value is None else _JSON_ENCODER.encode(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> list[Any] | None:
        """Decode the list from JSON."""
        return None if value is None else decode_numbers(value)


class DocumentText(TypeDecorator[Evidence | CampaignPlan]):
    """Evidence or a plan, stored as the JSON text of its class."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, kind: type[Evidence | CampaignPlan]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(
        self, value: Evidence | CampaignPlan | None, dialect: Dialect
    ) -> str | None:
        """Write the document."""
        return None if value is None else value.to_json()

    def process_result_value(self, value: str | None, dialect: Dialect) -> Evidence | CampaignPlan:
        """Read the document; NULL is one without values."""
        return self.kind.from_json(value or "{}")


class _ByteText(UserDefinedType[str]):
    """VARCHAR2 with a length in bytes, where SQLAlchemy would count characters."""

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


def text_equals(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    """Return the condition that a column of stored text holds this text; '' is unknown text."""
    return column == text if text else column.is_(None)
