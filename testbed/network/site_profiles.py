"""Differences between the sites of a testbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkDistance:
    """Round trip in ms and rate in Mbit/s between a storage and its readers."""

    rtt_ms: float
    rate_mbit: float

    @property
    def queue_kb(self) -> int:
        """Queue of the link in units of 1024 bytes: three round trips, at least 2 MB."""
        return max(2048, int(3 * self.rtt_ms * 1e-3 * self.rate_mbit * 1e6 / 8 / 1024))


@dataclass(frozen=True)
class SiteProfile:
    """Properties of one site.

    Attributes:
        site: its name.
        distance: None for a near storage.
        http: whether its storage also serves HTTP.
        cache: whether a caching proxy is its second door.
    """

    site: str
    distance: NetworkDistance | None = None
    http: bool = False
    cache: bool = False
    kind: str = "near"

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the site."""
        extra_labels = [
            word for word, has in (("http", self.http), ("two-doors", self.cache)) if has
        ]
        return (self.kind, *extra_labels)


MEDIUM_DISTANCE = NetworkDistance(rtt_ms=8.0, rate_mbit=1000.0)
LONG_DISTANCE = NetworkDistance(rtt_ms=20.0, rate_mbit=1000.0)


def build_profiles(sites: Sequence[str]) -> tuple[SiteProfile, ...]:
    """Build a profile for each site, in order.

    The first site has a cache. The second one (the first of two or fewer) serves HTTP. The last of
    several is distant, the one before it of four or more at medium distance. With three or more, the
    distant site serves HTTP, too.
    """
    count = len(sites)
    profiles = []
    for index, site in enumerate(sites):
        distance, kind = None, "near"
        if count > 1 and index == count - 1:
            distance, kind = LONG_DISTANCE, "distant"
        elif count > 3 and index == count - 2:
            distance, kind = MEDIUM_DISTANCE, "medium"
        http = index in ((1, count - 1) if count > 2 else (0,))
        profiles.append(SiteProfile(site, distance, http=http, cache=index == 0, kind=kind))
    return tuple(profiles)
