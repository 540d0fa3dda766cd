"""A service on a database that the test fills."""

from service_thread import pages

__all__ = ["pages"]
