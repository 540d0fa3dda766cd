"""The service on a database of the test's own."""

from service_thread import pages, service, start_service

__all__ = ["pages", "service", "start_service"]
