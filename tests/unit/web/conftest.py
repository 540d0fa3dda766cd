"""Fixtures that run the service."""

from service_thread import filled_service, service, shared_key, shared_service, start_service

__all__ = ["filled_service", "service", "shared_key", "shared_service", "start_service"]
