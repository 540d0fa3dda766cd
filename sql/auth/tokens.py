"""Keys to the results service, and the tokens of jobs that are signed with them.

A key is one line of text, ``th1.KID.SECRET``: its holder shows it, or signs with its secret a JSON
Web Token for each job, without asking anybody.  The service derives the secret of a key anew from its
master key, so neither the database nor the service keeps it.  Nothing here shows a secret in a
message or a ``repr``.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treehammer.collectors.worker.probes.credential_checks import format_time
from treehammer.errors import ConfigError, TokenError

if TYPE_CHECKING:
    from treehammer.config import Settings

READ, SUBMIT, ADMIN = "read", "submit", "admin"
ROLES = (READ, SUBMIT, ADMIN)
#: Scopes of what can be revoked beside a key.
CAMPAIGN, JOB = "campaign", "job"
#: Holds the text of a key where no file is named.
TOKEN_VARIABLE = "TREEHAMMER_SERVICE_TOKEN"  # noqa: S105 - the name of a variable

#: Seconds by which the clocks of a submitter and of the service may differ.
CLOCK_SKEW_S = 120
#: The longest that tokens of jobs may outlive the key that signed them.
OUTLIVE_DAYS = 30
#: No token is longer, in characters.
MAX_TOKEN_LENGTH = 2000

_KEY_PREFIX = "th1"
_KEY_PATTERN = re.compile(rf"{_KEY_PREFIX}\.([0-9a-f]{{12}})\.([A-Za-z0-9_-]{{43}})")
_ALGORITHM = "HS256"
_US_PER_S = 1_000_000


@dataclass(frozen=True)
class AccessKey:
    """A key as its holder has it."""

    key_id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The one line to keep in a file that nobody else can read."""
        return f"{_KEY_PREFIX}.{self.key_id}.{self.secret}"


@dataclass(frozen=True)
class AccessKeyRow:
    """A key as the service knows it.

    ``expires_us`` and ``revoked_us`` are None when it does not expire and was not revoked;
    ``master_key_fingerprint`` is the :func:`fingerprint` of the master key it was derived from.
    """

    key_id: str
    role: str
    name: str
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    master_key_fingerprint: str


@dataclass(frozen=True)
class AccessList:
    """Who may do what: every key by its id, and the ids of revoked campaigns and jobs."""

    keys: Mapping[str, AccessKeyRow]
    campaigns: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class AccessGrant:
    """What the bearer of a token may do; a job's token is for one campaign and one job."""

    role: str
    key_id: str
    name: str
    expires_us: int | None = None
    campaign_id: str | None = None
    job_id: str | None = None

    @property
    def may_read(self) -> bool:
        """Whether results may be read."""
        return self.role in (READ, ADMIN)

    @property
    def may_submit(self) -> bool:
        """Whether measurements may be handed in: of one job only when ``job_id`` is set."""
        return self.role in (SUBMIT, ADMIN)


def parse_key(text: str) -> AccessKey:
    """Read the text of a key.

    Raises:
        ConfigError: it is none; nothing of it is repeated.
    """
    match = _KEY_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            "this is no key of a results service",
            hint="A key is one line, th1.KID.SECRET, as printed by: treehammer token create",
        )
    return AccessKey(match[1], match[2])


def load_user_key(settings: Settings) -> AccessKey | None:
    """The key that this user holds: of ``service_token_file``, else of the environment.

    Returns:
        None when there is neither.

    Raises:
        ConfigError: the file cannot be read, or holds no key.
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
    """The key of that id, as the holder of the master key makes it."""
    digest = hmac.digest(master, f"treehammer key {key_id}".encode(), hashlib.sha256)
    return AccessKey(key_id, base64.urlsafe_b64encode(digest).rstrip(b"=").decode())


def fingerprint_master_key(master: bytes) -> str:
    """What tells one master key from another, and nothing of either."""
    return hmac.digest(master, b"treehammer fingerprint", hashlib.sha256).hex()[:16]


def mint_job_token(key: AccessKey, campaign_id: str, job_id: str, expires_us: int) -> str:
    """A token with which one job may hand in its measurements, and nothing else.

    Args:
        key: of the role ``submit`` or ``admin``; only the service can tell.
        campaign_id: the only campaign that measurements may be of.
        job_id: the only job.
        expires_us: when it ends; give the campaign's deadline and some grace.  It also ends when
            its key, campaign or job is revoked, and :data:`OUTLIVE_DAYS` after its key expired.
    """
    # A tenth of a second to load, which no other verb should pay.
    import jwt

    claims = {"campaign": campaign_id, "job": job_id, "exp": -(-expires_us // _US_PER_S)}
    return jwt.encode(claims, key.secret, algorithm=_ALGORITHM, headers={"kid": key.key_id})


def verify_token(token: str, access: AccessList, master: bytes, now_us: int) -> AccessGrant:
    """What the bearer of a token may do.

    Raises:
        TokenError: the token does not count, and why; nothing of it is repeated.
    """
    if len(token) > MAX_TOKEN_LENGTH:
        raise TokenError("the token is too long to be one")
    shown = _KEY_PATTERN.fullmatch(token)
    if shown is None:
        return _verify_job_token(token, access, master, now_us)
    row = _require_valid_key(shown[1], access, master)
    if not hmac.compare_digest(derive_key(master, row.key_id).secret, shown[2]):
        raise TokenError("the service has not made this key")
    _require_unexpired(row.expires_us, now_us, "the key")
    return AccessGrant(row.role, row.key_id, row.name, row.expires_us)


def _verify_job_token(token: str, access: AccessList, master: bytes, now_us: int) -> AccessGrant:
    import jwt

    try:
        row = _require_valid_key(str(jwt.get_unverified_header(token).get("kid")), access, master)
        # The time is judged below: by the same clock, and with words of its own.
        claims = jwt.decode(
            token,
            derive_key(master, row.key_id).secret,
            algorithms=[_ALGORITHM],
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False},
        )
    except (jwt.PyJWTError, ValueError, RecursionError):
        # PyJWT 2.10 lets the last one through, of what is nested deeply.
        raise TokenError("this is no token that the service or one of its keys has made") from None
    campaign_id, job_id, expires_us = _parse_claims(claims)
    if row.role not in (SUBMIT, ADMIN):
        raise TokenError(f"key {row.key_id} may not make tokens for jobs: its role is '{row.role}'")
    if row.expires_us is not None:
        expires_us = min(expires_us, row.expires_us + OUTLIVE_DAYS * 86400 * _US_PER_S)
    _require_unexpired(expires_us, now_us, "the job's token")
    if campaign_id in access.campaigns:
        raise TokenError("the tokens of this campaign were revoked")
    if job_id in access.jobs:
        raise TokenError("the token of this job was revoked")
    return AccessGrant(SUBMIT, row.key_id, row.name, expires_us, campaign_id, job_id)


def _parse_claims(claims: Mapping[str, Any]) -> tuple[str, str, int]:
    campaign_id, job_id, expires_s = (claims.get(name) for name in ("campaign", "job", "exp"))
    if (
        not isinstance(campaign_id, str)
        or not isinstance(job_id, str)
        or not isinstance(expires_s, int)
    ):
        raise TokenError("the job's token does not name campaign, job and end")
    return campaign_id, job_id, expires_s * _US_PER_S


def _require_valid_key(key_id: str, access: AccessList, master: bytes) -> AccessKeyRow:
    row = access.keys.get(key_id)
    if row is None:
        raise TokenError("the service knows no such key", may_be_new=True)
    if row.revoked_us is not None:
        raise TokenError(f"key {key_id} was revoked at {_format_time(row.revoked_us)}")
    if row.master_key_fingerprint != fingerprint_master_key(master):
        raise TokenError(f"key {key_id} was made with another master key than the service's")
    return row


def _require_unexpired(expires_us: int | None, now_us: int, what: str) -> None:
    if expires_us is not None and now_us > expires_us + CLOCK_SKEW_S * _US_PER_S:
        raise TokenError(
            f"{what} expired at {_format_time(expires_us)}; the service's clock says {_format_time(now_us)}"
        )


def _format_time(time_us: int) -> str:
    try:
        return format_time(time_us / _US_PER_S)
    except (ValueError, OverflowError, OSError):
        return "a time beyond the calendar"
