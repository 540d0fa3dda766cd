"""Tokens of jobs: minting by a submitter, verification by the service.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from treehammer.durations import SECOND_US
from treehammer.errors import TokenError
from treehammer.sql.auth.access_keys import (
    ADMIN,
    KEY_PATTERN,
    READ,
    SUBMIT,
    AccessKey,
    MasterKeys,
    derive_key,
)
from treehammer.sql.core.rows import AccessKeyRow
from treehammer.text_formatting import format_time

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
class ReadSession:
    """A signed-in browser as the service stores it.

    ``key_id`` is the key that signed in, or None for an ``identity`` of an OpenID provider: its issuer
    and subject.
    """

    token_hash: str
    role: str
    name: str
    key_id: str | None
    identity: str | None
    address: str
    created_us: int
    expires_us: int


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
