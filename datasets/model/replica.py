"""Where replicas of datasets are: what every catalogue tells, whoever keeps it."""

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
        url: what ROOT opens.
        size: in bytes, by the manifest.
        adler32: 8 hex digits, by the manifest.
        state: :data:`AVAILABLE`; catalogues tell of no others.
        path: what follows the storage's own prefix in ``url``, '' where that is not known.
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
        """What ROOT opens to read it through a door that leads to the storage's own prefix."""
        return f"{prefix.rstrip('/')}/{self.path}"
