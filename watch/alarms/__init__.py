"""Alarms: the state of each site, release and service, and messages when it changes.

One function computes each state; commands, pages, metrics and documents for other monitoring
systems show it.
"""
