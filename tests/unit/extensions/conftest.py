"""Fixtures that run the service."""

from service_thread import start_service

__all__ = ["start_service"]
