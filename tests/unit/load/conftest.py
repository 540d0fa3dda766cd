"""The service and its stub, and a door that redirects."""

from ingest_stub import endpoint, ingest, stub_service
from local_servers import authority, door
from service_thread import draw_in_process, pages, service, start_service

__all__ = [
    "authority",
    "door",
    "draw_in_process",
    "endpoint",
    "ingest",
    "pages",
    "service",
    "start_service",
    "stub_service",
]
