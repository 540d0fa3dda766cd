"""Fixtures of the service."""

from service_thread import service, shared_key, shared_service, start_service

__all__ = ["service", "shared_key", "shared_service", "start_service"]
