"""Replicas of datasets, as every catalogue describes them."""

from __future__ import annotations

from dataclasses import dataclass

AVAILABLE = "available"


@dataclass(frozen=True)
class Replica:
    """One file of a dataset at one door, as a catalogue has it; the door may know better.

    Attributes:
        site: where jobs that are near it run.
        rse: Rucio's name of the storage, '' where the catalogue has no such names.
        file: as the manifest calls it.
        url: URL for ROOT to open.
        size: in bytes, by the manifest.
        adler32: 8 hex digits, by the manifest.
        state: :data:`AVAILABLE`; catalogues list no others.
        path: remainder of ``url`` after the storage's prefix, '' where unknown.
    """

    site: str
    rse: str
    file: str
    url: str
    size: int
    adler32: str
    state: str = AVAILABLE
    path: str = ""

    def url_at_prefix(self, prefix: str) -> str:
        """Return the URL for ROOT to read it through a door that leads to the storage's prefix."""
        return f"{prefix.rstrip('/')}/{self.path}"
