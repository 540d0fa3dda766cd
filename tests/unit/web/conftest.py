"""Fixtures that run the service, on the day of the collection also after midnight."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

import pytest
from service_thread import (
    draw_in_process,
    filled_service,
    key,
    pages,
    reader_key,
    service,
    shared_key,
    shared_service,
    start_service,
)

from treehammer.web import display_formats

__all__ = [
    "draw_in_process",
    "filled_service",
    "key",
    "pages",
    "reader_key",
    "service",
    "shared_key",
    "shared_service",
    "start_service",
]

COLLECTED = datetime.now(UTC)


class CollectionDay(datetime):
    """Times of the day on which the tests were collected, as their modules know it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Return the time, at the latest the last second of that day."""
        return min(datetime.now(tz), COLLECTED.replace(hour=23, minute=59, second=59))


@pytest.fixture(scope="module", autouse=True)
def _one_day() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display_formats, "datetime", CollectionDay)
        yield
