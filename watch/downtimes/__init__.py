"""Downtimes of sites, from calendars and documents."""
