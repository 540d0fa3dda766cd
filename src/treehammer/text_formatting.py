"""Counts, durations and sizes as text for people."""

from __future__ import annotations

MEGABYTE = 1_000_000


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 job``, ``2 jobs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_duration(seconds: float) -> str:
    """Format a duration in its natural unit: ``90 s``, ``3 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_share(share: float, decimals: int = 0) -> str:
    """Format a share in per cent: ``6 %``, or ``5.9 %`` with one decimal."""
    return f"{100 * share:.{decimals}f} %"


def format_size(size: float) -> str:
    """Format a number of bytes: ``950 B``, ``1.25 MB``."""
    return f"{size / MEGABYTE:.2f} MB" if size >= MEGABYTE / 100 else f"{size:.0f} B"
