"""A door that redirects, and a stub of the results service."""

from ingest_stub import endpoint, ingest, stub_service
from local_servers import authority, door

__all__ = ["authority", "door", "endpoint", "ingest", "stub_service"]
