"""The service on a database of the test's own."""

from service_thread import draw_in_process, pages, service, start_service

__all__ = ["draw_in_process", "pages", "service", "start_service"]
