"""Names that a published site leaves out: hosts become numbered nodes, people are removed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.rows import LOCAL_OWNER
from treehammer.sql.core.schema import (
    access_key,
    campaign,
    campaign_owner,
    dimension_tables,
    instruction_count,
    pair,
    watched_series,
)

_HOST_COLUMNS = (
    dimension_tables["node"].c.host,
    pair.c.host,
    watched_series.c.host,
    instruction_count.c.host,
    dimension_tables["storage"].c.data_server,
)
_PEOPLE_COLUMNS = (campaign.c.submitter, campaign_owner.c.owner, access_key.c.name)
_WORD = re.compile(r"\w[\w.-]*\w|\w")
#: Folders that have the names of people.
_HOME = re.compile(r"(/(?:home|Users|user/\w)/)[^/\s\"]+")
#: Folders of cached software, whose place concerns one machine.
_CACHE = re.compile(r"(?<![^\s\"'])/[^\s\"']*/software/(?=[a-z]+-\d)")
#: Users that are nobody in particular.
_COMMON_USERS = ("root", "local", "nobody", LOCAL_OWNER)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class PublicNames:
    """Replaces names of hosts in texts.

    A name without digit, dot and hyphen may be any word: it is replaced only where it stands alone, as in
    a column, or in quotes, as in a document.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._alone: dict[str, str] = {}
        for number, host in enumerate(hosts, 1):
            name = f"node-{number}"
            self._alone.setdefault(host, name)
            # Messages have the first part of a full name.
            label = host.partition(".")[0]
            if re.search(r"\d", label) and re.search("[^0-9]", label):
                self._alone.setdefault(label, name)
        self._within = {
            host: name for host, name in self._alone.items() if re.search(r"[\d.-]", host)
        }
        self.replace = lru_cache(maxsize=100_000)(self._replace)

    @property
    def hosts(self) -> Mapping[str, str]:
        """Names of hosts that can be told from words, with those that replace them."""
        return self._within

    def _replace(self, text: str, *, hides_people: bool) -> str:
        text = _CACHE.sub("software/", text)
        if hides_people and "/" in text:
            text = _HOME.sub(r"\1someone", text)
        if not self._alone:
            return text
        if text in self._alone:
            return self._alone[text]
        text = _WORD.sub(lambda match: self._within.get(match[0], match[0]), text)
        if text.startswith(("{", "[")):
            for host, name in self._alone.items():
                if host not in self._within:
                    text = text.replace(f'"{host}"', f'"{name}"')
        return text


def load_hosts(connection: Connection) -> list[str]:
    """Load the names of all hosts, those of jobs first, in the order of their first measurements."""
    names: dict[str, None] = {}
    for column in _HOST_COLUMNS:
        query = sa.select(column).distinct()
        if column.table.name == "node":
            query = sa.select(column).order_by(column.table.c.id)
        names |= dict.fromkeys(filter(None, connection.scalars(query)))
    return [name for name in names if name not in _LOCAL_HOSTS]


def load_people(connection: Connection) -> set[str]:
    """Load the names of those who submitted campaigns or hold keys."""
    names: set[str] = set()
    for column in _PEOPLE_COLUMNS:
        names.update(filter(None, connection.scalars(sa.select(column).distinct())))
    return names - {*_COMMON_USERS}


def find_names(text: str, names: Iterable[str]) -> list[str]:
    """Find names that stand in a text as words."""
    return sorted({*_WORD.findall(text)} & {*names})
