"""The service, also with a database of the tests."""

from service_thread import draw_in_process, filled_service, pages, service, start_service

__all__ = ["draw_in_process", "filled_service", "pages", "service", "start_service"]
