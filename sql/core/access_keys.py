"""Keys to the results service, and tokens of jobs that are signed with them.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import TOKEN_VARIABLE
from treehammer.errors import ConfigError, TokenError
from treehammer.program_output import read_secret_file
from treehammer.text_formatting import SECOND_US, format_time

if TYPE_CHECKING:
    from treehammer.config import Settings
    from treehammer.sql.core.rows import AccessKeyRow, ReadSession

READ, SUBMIT, ADMIN = "read", "submit", "admin"
ROLES = (READ, SUBMIT, ADMIN)
_KEY_PREFIX = "th1"
#: A key's text, with its identity and its secret as groups.
KEY_PATTERN = re.compile(rf"{_KEY_PREFIX}\.([0-9a-f]{{12}})\.([A-Za-z0-9_-]{{43}})")
#: Kinds of subjects whose tokens can be revoked without revoking their key.
CAMPAIGN, JOB = "campaign", "job"
#: Tolerated difference between the clocks of a submitter and the service, in seconds.
CLOCK_SKEW_S = 120
#: Days for which a job's token may outlive the key that signed it.
OUTLIVE_DAYS = 30
#: Maximum number of characters of a token.
MAX_TOKEN_LENGTH = 2000
_ALGORITHM = "HS256"


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
    text = read_secret_file("service_token_file", path)
    return _parse_key_at(text, f"service_token_file {path}")


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


@dataclass(frozen=True)
class AccessList:
    """All keys by identity, revoked campaigns and jobs, and sessions by the hash of their token."""

    keys: Mapping[str, AccessKeyRow]
    campaigns: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    sessions: Mapping[str, ReadSession] = field(default_factory=dict)


@dataclass(frozen=True)
class AccessGrant:
    """Permissions of the bearer of a token; a job's token is valid for one campaign and job.

    ``owner`` is the group that campaigns sent with the token belong to.
    """

    role: str
    key_id: str
    name: str
    owner: str
    expires_us: int | None = None
    campaign_id: str | None = None
    job_id: str | None = None

    @property
    def may_read(self) -> bool:
        """Whether reading results is allowed."""
        return self.role in (READ, ADMIN)

    @property
    def may_submit(self) -> bool:
        """Whether adding measurements is allowed; those of one job only if ``job_id`` is set."""
        return self.role in (SUBMIT, ADMIN)


def mint_job_token(key: AccessKey, campaign_id: str, job_id: str, expires_us: int) -> str:
    """Sign a token with which one job can send its measurements, and nothing else.

    Args:
        key: a key of the role ``submit`` or ``admin``; only the service can check the role.
        campaign_id: the campaign of all measurements.
        job_id: the job of all measurements.
        expires_us: expiry; use the campaign's deadline plus a margin. The token also ends when its
            key, campaign or job is revoked, and :data:`OUTLIVE_DAYS` after its key expired.
    """
    # Loading takes a tenth of a second, which other commands should not pay.
    import jwt

    claims = {"campaign": campaign_id, "job": job_id, "exp": -(-expires_us // SECOND_US)}
    return jwt.encode(claims, key.secret, algorithm=_ALGORITHM, headers={"kid": key.key_id})


def verify_token(token: str, access: AccessList, masters: MasterKeys, now_us: int) -> AccessGrant:
    """Verify a key or a job's token and return its permissions.

    Raises:
        TokenError: it is invalid; the message gives the reason and does not repeat the token.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        raise TokenError("the token is too long")
    match = KEY_PATTERN.fullmatch(token)
    if match is None:
        return _verify_job_token(token, access, masters, now_us)
    row = require_valid_key(match[1], access, masters)
    if not hmac.compare_digest(_derive_key(masters, row).secret, match[2]):
        raise TokenError("the service did not issue this key")
    require_unexpired(row.expires_us, now_us, "the key")
    return AccessGrant(row.role, row.key_id, row.name, row.owner, row.expires_us)


def _verify_job_token(
    token: str, access: AccessList, masters: MasterKeys, now_us: int
) -> AccessGrant:
    import jwt

    try:
        row = require_valid_key(str(jwt.get_unverified_header(token).get("kid")), access, masters)
        # Times are checked below, by the clock of the caller and with clearer messages.
        claims = jwt.decode(
            token,
            _derive_key(masters, row).secret,
            algorithms=[_ALGORITHM],
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
    except (jwt.PyJWTError, ValueError, RecursionError):
        # PyJWT 2.10 raises RecursionError for deeply nested tokens.
        raise TokenError("the token was not issued by the service or one of its keys") from None
    campaign_id, job_id, expires_us = _parse_claims(claims)
    if row.role not in (SUBMIT, ADMIN):
        raise TokenError(f"key {row.key_id} cannot sign tokens of jobs: its role is '{row.role}'")
    if row.expires_us is not None:
        expires_us = min(expires_us, row.expires_us + OUTLIVE_DAYS * 86400 * SECOND_US)
    require_unexpired(expires_us, now_us, "the job's token")
    if campaign_id in access.campaigns:
        raise TokenError("the tokens of this campaign were revoked")
    if job_id in access.jobs:
        raise TokenError("the token of this job was revoked")
    return AccessGrant(SUBMIT, row.key_id, row.name, row.owner, expires_us, campaign_id, job_id)


def _parse_claims(claims: Mapping[str, Any]) -> tuple[str, str, int]:
    campaign_id, job_id, expires_s = (claims.get(name) for name in ("campaign", "job", "exp"))
    if (
        not isinstance(campaign_id, str)
        or not isinstance(job_id, str)
        or not isinstance(expires_s, int)
    ):
        raise TokenError("the job's token lacks campaign, job or expiry")
    return campaign_id, job_id, expires_s * SECOND_US


def require_valid_key(key_id: str, access: AccessList, masters: MasterKeys) -> AccessKeyRow:
    """Return the key with this identity.

    Raises:
        TokenError: it is unknown, revoked, or derived from another master key.
    """
    row = access.keys.get(key_id)
    if row is None:
        raise TokenError("the service has no such key", may_be_new=True)
    if row.revoked_us is not None:
        raise TokenError(f"key {key_id} was revoked at {_format_time(row.revoked_us)}")
    if masters.find(row.master_key_fingerprint) is None:
        # The service may not have noticed a rotation yet.
        raise TokenError(
            f"key {key_id} was derived from another master key than the service's", may_be_new=True
        )
    return row


def _derive_key(masters: MasterKeys, row: AccessKeyRow) -> AccessKey:
    master = masters.find(row.master_key_fingerprint)
    assert master is not None, "checked by require_valid_key"
    return derive_key(master, row.key_id)


def require_unexpired(expires_us: int | None, now_us: int, subject: str) -> None:
    """Refuse an expired ``subject``, tolerating :data:`CLOCK_SKEW_S`.

    Raises:
        TokenError: it has expired.
    """
    if expires_us is not None and now_us > expires_us + CLOCK_SKEW_S * SECOND_US:
        raise TokenError(
            f"{subject} expired at {_format_time(expires_us)}; "
            f"the service's clock is at {_format_time(now_us)}"
        )


def _format_time(time_us: int) -> str:
    try:
        return f"{format_time(time_us)} UTC"
    except (ValueError, OverflowError, OSError):
        return "a time beyond the calendar"
