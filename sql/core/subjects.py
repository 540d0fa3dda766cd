"""Subjects that have states: sites of jobs, sites of storage, their doors, and all of a kind together."""

from __future__ import annotations

from collections.abc import Mapping

#: Kinds of subjects: sites of jobs, sites of storage, and all subjects of a kind together.
SITE, STORAGE_SITE, CENTRAL = "site", "storage_site", "central"
#: A door of a storage; its site is the door's label.
DOOR = "door"
#: The two kinds of sites, and all kinds that have states.
SUBJECT_KINDS = (SITE, STORAGE_SITE)
JUDGED_KINDS = (*SUBJECT_KINDS, DOOR)
#: Words for these kinds.
KIND_WORDS: Mapping[str, str] = {
    SITE: "jobs",
    STORAGE_SITE: "storage",
    DOOR: "door",
    CENTRAL: "all sites",
}


def label_door(storage: str, door: str) -> str:
    """Return the label of a storage's door, as jobs of other sites name it."""
    return f"{storage}:{door}"


def split_door_label(label: str) -> tuple[str, str]:
    """Return the storage and the door of a label; the name of a site and '' for a site."""
    storage, _, door = label.partition(":")
    return storage, door


def locate_subject(kind: str, name: str) -> tuple[str, str]:
    """Return the site and the door of a subject; '' for the door of a site."""
    return split_door_label(name) if kind == DOOR else (name, "")
