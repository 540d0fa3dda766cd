"""Fixtures of filled stores, and the lint of all statements for Oracle."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from oracle_lint import lint_executed_statement
from store_helpers import export_rows, exported_store, other_store, source, write

__all__ = ["export_rows", "exported_store", "lint_for_oracle", "other_store", "source", "write"]


@pytest.fixture(scope="module", autouse=True)
def lint_for_oracle() -> Iterator[None]:
    """Lint each statement that a test of this folder executes as Oracle would get it."""
    sa.event.listen(sa.Engine, "before_cursor_execute", lint_executed_statement)
    yield
    sa.event.remove(sa.Engine, "before_cursor_execute", lint_executed_statement)
