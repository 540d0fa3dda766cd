"""A service on a database that the test fills."""

from service_thread import draw_in_process, pages

__all__ = ["draw_in_process", "pages"]
