"""Fixtures that run the service."""

from service_thread import (
    draw_in_process,
    filled_service,
    pages,
    service,
    shared_key,
    shared_service,
    start_service,
)

__all__ = [
    "draw_in_process",
    "filled_service",
    "pages",
    "service",
    "shared_key",
    "shared_service",
    "start_service",
]
