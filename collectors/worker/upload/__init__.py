"""Delivery of measurements to the results service."""
