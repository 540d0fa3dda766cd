"""Reporting to the results service: job tokens and campaign uploads."""
