"""Conversion of Rucio responses to dataclasses and of its exceptions to Treehammer errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from treehammer.config import Settings
from treehammer.errors import CatalogueError, ConfigError, DatasetError, TreehammerError

#: Names of Rucio's exceptions by category; transient errors are retried.
TRANSIENT_ERRORS = (
    "ServerConnectionException",
    "ServiceUnavailable",
    "DatabaseException",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "ChunkedEncodingError",
    "ReplicationRuleCreationTemporaryFailed",
)
#: Names of the exceptions of a refused login.
LOGIN_ERRORS = ("CannotAuthenticate", "NoAuthInformation", "IdentityError", "AccountNotFound")
_CONFIG_ERRORS = (
    "ConfigNotFound",
    "ConfigLoadingError",
    "MissingClientParameter",
    "ClientProtocolNotFound",
    "ClientProtocolNotSupported",
)


class RucioDeniedError(CatalogueError):
    """Rucio denies a request to this account."""


class RucioNotFoundError(DatasetError):
    """Rucio knows no such data, RSE or rule."""


class RucioDuplicateError(DatasetError):
    """The object to create exists already."""


class RseExpressionError(ConfigError):
    """An RSE expression is invalid, or selects no storage."""


@dataclass(frozen=True)
class DidFile:
    """File in the catalogue: size in bytes, ``adler32`` as 8 hex digits."""

    name: str
    size: int
    adler32: str


@dataclass(frozen=True)
class Rse:
    """Storage element; ``site`` is '' if Rucio does not name its site.

    ``prefixes`` are the URL prefixes of all its protocols.
    """

    name: str
    site: str
    kind: str
    writable: bool
    staging: bool
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AccountQuota:
    """Quota and usage of the account at an RSE, in bytes; ``inf`` for no limit."""

    limit: float
    used: int

    @property
    def free(self) -> float:
        """Return the bytes left in the quota."""
        return self.limit - self.used


@dataclass(frozen=True)
class ReplicationRule:
    """Replication rule; ``ends`` in seconds since 1970, None for never."""

    id: str
    expression: str
    account: str
    state: str
    locks_ok: int
    locks_copying: int
    locks_stuck: int
    error: str
    expires_at: float | None


@dataclass(frozen=True)
class ReplicaLocation:
    """Location of a replica; lower priorities are better."""

    file: str
    rse: str
    url: str
    priority: int


def parse_rule(row: Mapping[str, Any]) -> ReplicationRule:
    """Convert a row of Rucio to a rule."""
    ends = row.get("expires_at")
    if isinstance(ends, str):
        ends = datetime.strptime(ends, "%a, %d %b %Y %H:%M:%S %Z")
    return ReplicationRule(
        id=str(row["id"]),
        expression=str(row["rse_expression"]),
        account=str(row["account"]),
        state=str(row["state"]),
        locks_ok=int(row["locks_ok_cnt"]),
        locks_copying=int(row["locks_replicating_cnt"]),
        locks_stuck=int(row["locks_stuck_cnt"]),
        error=_clean_error_text(str(row.get("error") or "")),
        expires_at=ends.replace(tzinfo=UTC).timestamp() if ends else None,
    )


def _clean_error_text(error: str) -> str:
    """Remove Rucio's names for error kinds from a transfer's error."""
    found = error.removeprefix("RequestErrMsg.").removeprefix("TRANSFER_FAILED:")
    return " ".join(found.split())


#: Name of an exception of Rucio -> the error that it becomes.
_ERRORS_BY_KIND: Mapping[str, type[TreehammerError]] = {
    "InvalidRSEExpression": RseExpressionError,
    "InvalidObject": ConfigError,
    "DataIdentifierNotFound": RucioNotFoundError,
    "RSENotFound": RucioNotFoundError,
    "RuleNotFound": RucioNotFoundError,
    "RSEProtocolNotSupported": RucioNotFoundError,
    "DataIdentifierAlreadyExists": RucioDuplicateError,
    "Duplicate": RucioDuplicateError,
    "DuplicateContent": RucioDuplicateError,
    "DuplicateRule": RucioDuplicateError,
    "FileAlreadyExists": RucioDuplicateError,
    "FileReplicaAlreadyExists": RucioDuplicateError,
    "AccessDenied": RucioDeniedError,
    "InsufficientAccountLimit": RucioDeniedError,
    "InsufficientTargetRSEs": RucioDeniedError,
    "InvalidReplicationRule": RucioDeniedError,
    "ManualRuleApprovalBlocked": RucioDeniedError,
    "ResourceTemporaryUnavailable": RucioDeniedError,
    "RSEAccessDenied": RucioDeniedError,
    "RSEOverQuota": RucioDeniedError,
    "RSEWriteBlocked": RucioDeniedError,
    "ScopeAccessDenied": RucioDeniedError,
    "ScopeNotFound": RucioDeniedError,
    "ScratchDiskLifetimeConflict": RucioDeniedError,
    "UnsupportedOperation": RucioDeniedError,
}


def clean_message(text: str) -> str:
    """Return Rucio's message on one line, without the schema that it may repeat."""
    return " ".join(text.replace("Details: ", "").split()).partition(" Failed validating ")[0]


def translate_error(error: Exception, settings: Settings) -> Exception:
    """Translate an exception of Rucio; unexpected ones are returned unchanged."""
    kind = type(error).__name__
    said = clean_message(str(error))
    where, file = "Rucio", str(settings.rucio_config or "rucio.cfg")
    if kind in _CONFIG_ERRORS:
        hint = "Name the client's rucio.cfg: rucio_config in treehammer.toml or TREEHAMMER_RUCIO_CONFIG."
        return ConfigError(said, where=file, hint=hint)
    if kind in LOGIN_ERRORS:
        who = settings.rucio_account or "your account"
        hint = "Check account, username and password in rucio.cfg, or your proxy or token."
        return ConfigError(f"does not let {who} in: {said}", where=file, hint=hint)
    if kind in _ERRORS_BY_KIND:
        return _ERRORS_BY_KIND[kind](said, where=where)
    if kind in TRANSIENT_ERRORS:
        return CatalogueError(
            f"does not answer: {said}",
            where=where,
            hint="Nothing registered so far is lost: repeat the same command later.",
        )
    return CatalogueError(f"{kind}: {said}", where=where) if _is_rucio_error(error) else error


def _is_rucio_error(error: Exception) -> bool:
    return type(error).__module__.startswith(("rucio.", "requests."))
