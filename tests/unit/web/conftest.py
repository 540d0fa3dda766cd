"""Fixtures of the service."""

from web_service import service, shared, shared_key, start

__all__ = ["service", "shared", "shared_key", "start"]
