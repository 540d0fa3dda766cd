"""Loads on storages as the page of a load and the report of its campaign show them."""
