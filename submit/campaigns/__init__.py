"""Campaigns: request, rendering, submission, tracking, resumption and upload."""
