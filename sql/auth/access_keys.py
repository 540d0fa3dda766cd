"""Keys to the results service: their text, roles and derivation from the master key.

A key is one line of text, ``th1.KID.SECRET``. Its holder sends it, or signs with its secret a JSON Web
Token for each job. The service derives a key's secret from its master key, so that neither the
database nor the service stores it. No message or ``repr`` contains a secret.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treehammer.collectors.service_spec import TOKEN_VARIABLE
from treehammer.errors import ConfigError

if TYPE_CHECKING:
    from treehammer.config import Settings

READ, SUBMIT, ADMIN = "read", "submit", "admin"
ROLES = (READ, SUBMIT, ADMIN)

_KEY_PREFIX = "th1"
#: A key's text, with its identity and its secret as groups.
KEY_PATTERN = re.compile(rf"{_KEY_PREFIX}\.([0-9a-f]{{12}})\.([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True)
class AccessKey:
    """A key as its holder has it."""

    key_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The line to keep in a file that only its owner can read."""
        return f"{_KEY_PREFIX}.{self.key_id}.{self.secret}"


class MasterKeys:
    """The service's master key, and previous ones whose keys stay valid until the rotation ends.

    Args:
        current: from which new keys are derived.
        previous: from which older keys were derived.
    """

    def __init__(self, current: bytes, previous: Sequence[bytes] = ()) -> None:
        self.current = current
        self.previous = tuple(previous)
        self._by_fingerprint = {
            fingerprint_master_key(master): master for master in (*previous, current)
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MasterKeys) and self._by_fingerprint == other._by_fingerprint

    def __hash__(self) -> int:
        return hash(frozenset(self._by_fingerprint))

    def find(self, fingerprint: str) -> bytes | None:
        """Return the master key with this fingerprint; None if it is not one of these."""
        return self._by_fingerprint.get(fingerprint)

    def is_previous(self, fingerprint: str) -> bool:
        """Return whether a master key with this fingerprint was replaced by the current one."""
        return self.find(fingerprint) in self.previous


def parse_key(text: str) -> AccessKey:
    """Parse the text of a key.

    Raises:
        ConfigError: it is not a key; the message does not repeat it.
    """
    match = KEY_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            "this is not a key of a results service",
            hint="A key is one line, th1.KID.SECRET, as printed by: treehammer token create",
        )
    return AccessKey(match[1], match[2])


def load_user_key(settings: Settings) -> AccessKey | None:
    """Load this user's key from ``service_token_file`` or else from the environment.

    Returns:
        None if neither is set.

    Raises:
        ConfigError: the file cannot be read, or it does not contain a key.
    """
    path = settings.service_token_file
    if path is None:
        text = os.environ.get(TOKEN_VARIABLE, "")
        return _parse_key_at(text, TOKEN_VARIABLE) if text.strip() else None
    where = f"service_token_file {path}"
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})", where=where) from error
    except UnicodeDecodeError:
        text = ""
    return _parse_key_at(text, where)


def _parse_key_at(text: str, where: str) -> AccessKey:
    try:
        return parse_key(text)
    except ConfigError as error:
        raise ConfigError(error.message, where=where, hint=error.hint) from None


def derive_key(master: bytes, key_id: str) -> AccessKey:
    """Derive the key with this identity from the master key."""
    digest = hmac.digest(master, f"treehammer key {key_id}".encode(), hashlib.sha256)
    return AccessKey(key_id, base64.urlsafe_b64encode(digest).rstrip(b"=").decode())


def fingerprint_master_key(master: bytes) -> str:
    """Compute a fingerprint that identifies a master key without revealing it."""
    return hmac.digest(master, b"treehammer fingerprint", hashlib.sha256).hex()[:16]
