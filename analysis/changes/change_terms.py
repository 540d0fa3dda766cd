"""States, quantities and origins of changes over time, without the statistics that find them."""

from __future__ import annotations

from enum import StrEnum

#: Days that are searched.
WINDOW_DAYS = 90


class ChangeState(StrEnum):
    """Whether later days confirm a change."""

    PROVISIONAL = "provisional"
    CONFIRMED = "confirmed"


class SeriesKind(StrEnum):
    """Quantity of a daily series.

    A ratio is the mean over the day's jobs of ln(release / pinned control), paired inside each job.
    A level is ln(time) of the control itself, adjusted for the hosts and variants of the day.
    """

    RATIO = "ratio"
    LEVEL = "level"


class Attribution(StrEnum):
    """Origin of a change."""

    SITE = "site"
    RELEASE = "release"
    STORAGE = "storage"
    CENTRAL = "central"
    UNKNOWN = "unknown"


class NodeIdentity(StrEnum):
    """Property by which the node of a job is recognized on other days."""

    HOST = "host name"
    MACHINE = "machine identity"
    CPU_MODEL = "CPU model"
    SITE = "site"
