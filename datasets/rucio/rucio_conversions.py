"""Conversion of Rucio responses to dataclasses and of its exceptions to Treehammer errors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from treehammer.config import Settings
from treehammer.datasets.doors.observations import normalize_adler32
from treehammer.errors import CatalogueError, ConfigError, DatasetError, TreehammerError

#: Names of Rucio's exceptions by category; transient errors are retried. After some of them it is
#: known that the request was not carried out.
_ANSWERED_ERRORS = (
    "ServiceUnavailable",
    "DatabaseException",
    "ReplicationRuleCreationTemporaryFailed",
)
_CUT_ANSWERS = ("ChunkedEncodingError", "JSONDecodeError", "ShortListError")
#: Names of Python's errors where an answer has another form than Rucio's.
_FORM_ERRORS = ("AttributeError", "IndexError", "KeyError", "TypeError", "ValueError")
TRANSIENT_ERRORS = (
    *_ANSWERED_ERRORS,
    "ServerConnectionException",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    *_CUT_ANSWERS,
    *_FORM_ERRORS,
)
#: Names of the exceptions of a refused login.
LOGIN_ERRORS = ("CannotAuthenticate", "NoAuthInformation", "IdentityError", "AccountNotFound")
#: Names of the exceptions of a name that the server's schema refuses, and of those that follow once
#: it has accepted a name: files cannot be registered alone, and a dataset's files must exist.
INVALID_NAME_ERRORS = ("InvalidObject", "InvalidType", "InputValidationError", "InvalidPath")
VALID_NAME_ERRORS = (
    "UnsupportedOperation",
    "DataIdentifierNotFound",
    "DataIdentifierAlreadyExists",
    "FileAlreadyExists",
)
_CONFIG_ERRORS = "Config(NotFound|LoadingError)|MissingClientParameter|ClientProtocolNot.*"


def is_transient(error: Exception) -> bool:
    """Return whether a request may succeed when it is repeated, also after one that added the same."""
    kinds = (*TRANSIENT_ERRORS, "Duplicate", "FileAlreadyExists")
    return type(error).__name__ in kinds or "unique constraint" in str(error)


class ShortListError(Exception):
    """A list of Rucio lacks rows, which a proxy may have cut off between two of them."""


class RucioSilentError(CatalogueError):
    """Rucio gave no answer, or none that says whether the request was carried out."""


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
    """File in the catalogue: size in bytes, ``adler32`` as 8 hex digits, ``md5`` as 32.

    A checksum that the catalogue does not have is ''.
    """

    name: str
    size: int
    adler32: str
    md5: str = ""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> DidFile:
        """Convert a row of Rucio, in which files may lack either checksum."""
        adler32, md5 = row.get("adler32") or "", str(row.get("md5") or "").strip().lower()
        return cls(
            str(row["name"]),
            int(row["bytes"] or 0),
            normalize_adler32(adler32) if adler32 else "",
            md5,
        )

    def verify_content(self, path: Path, size: int | None, adler32: str) -> bool:
        """Return whether a local file is this one, by the checksum that the catalogue has.

        Args:
            path: the local file.
            size: its size.
            adler32: its adler32.

        Raises:
            CatalogueError: the sizes are equal, and the catalogue has no checksum.
        """
        if size != self.size:
            return False
        if self.adler32:
            return self.adler32 == adler32
        if self.md5:
            with path.open("rb") as stream:
                return self.md5 == hashlib.file_digest(stream, "md5").hexdigest()
        raise CatalogueError(
            f"{self.name} is registered without a checksum, and cannot be verified",
            where="Rucio",
            hint="Register its adler32, or place the dataset under another name.",
        )


@dataclass(frozen=True)
class DidNames:
    """Names of datasets and their files in Rucio, by the templates of the settings."""

    dataset_template: str
    file_template: str

    def dataset(self, name: str) -> str:
        """Build the name of a dataset."""
        return self.dataset_template.replace("{dataset}", name)

    def file(self, dataset: str, file: str) -> str:
        """Build the name of a dataset's file."""
        parts = re.split(r"(\{dataset\}|\{file\})", self.file_template)
        return "".join({"{dataset}": dataset, "{file}": file}.get(part, part) for part in parts)


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
    error: str
    expires_at: float | None


@dataclass(frozen=True)
class RuleOptions:
    """Options of replication rules; ``lifetime_s`` in seconds, None for no end."""

    lifetime_s: int | None
    comment: str
    activity: str


@dataclass(frozen=True)
class ReplicaLocation:
    """Location of a replica; lower priorities are better."""

    file: str
    rse: str
    url: str
    priority: int


def parse_rule(row: Mapping[str, Any]) -> ReplicationRule:
    """Convert a row of Rucio to a rule."""
    expires_at = row.get("expires_at")
    if isinstance(expires_at, str):
        expires_at = datetime.strptime(expires_at, "%a, %d %b %Y %H:%M:%S %Z")
    error = re.sub("^(RequestErrMsg.)?(TRANSFER_FAILED:)?", "", str(row.get("error") or ""))
    return ReplicationRule(
        id=str(row["id"]),
        expression=str(row["rse_expression"]),
        account=str(row["account"]),
        state=str(row["state"]),
        locks_ok=int(row["locks_ok_cnt"]),
        locks_copying=int(row["locks_replicating_cnt"]),
        error=" ".join(error.split()),
        expires_at=expires_at.replace(tzinfo=UTC).timestamp() if expires_at else None,
    )


#: Names of exceptions of Rucio -> the error that they become.
_ERRORS: Mapping[str, type[TreehammerError]] = {
    "InvalidRSEExpression": RseExpressionError,
    "InvalidObject": ConfigError,
    # ReplicaNotFound is of a file without path at an RSE with paths of its own.
    "(DataIdentifier|RSE|Replica|Rule)NotFound|RSEProtocolNotSupported": RucioNotFoundError,
    "Duplicate.*|.*AlreadyExists": RucioDuplicateError,
    ".*AccessDenied|Insufficient.*|InvalidReplicationRule|ManualRuleApprovalBlocked": RucioDeniedError,
    "ResourceTemporaryUnavailable|RSEOverQuota|RSEWriteBlocked|ScopeNotFound": RucioDeniedError,
    "ScratchDiskLifetimeConflict|UnsupportedOperation": RucioDeniedError,
}


def clean_message(text: str) -> str:
    """Return Rucio's message on one line, without the schema that it may repeat."""
    return " ".join(text.replace("Details: ", "").split()).partition(" Failed validating ")[0]


def translate_error(error: Exception, settings: Settings) -> Exception:
    """Translate an exception of Rucio; unexpected ones are returned unchanged."""
    kind = type(error).__name__
    message = clean_message(str(error))
    where, file = "Rucio", str(settings.rucio_config or "rucio.cfg")
    if re.fullmatch(_CONFIG_ERRORS, kind):
        hint = "Name the client's rucio.cfg: rucio_config in treehammer.toml or TREEHAMMER_RUCIO_CONFIG."
        return ConfigError(message, where=file, hint=hint)
    for pattern, error_kind in _ERRORS.items():
        if re.fullmatch(pattern, kind):
            return error_kind(message, where=where)
    if kind in TRANSIENT_ERRORS:
        silent = kind not in _ANSWERED_ERRORS
        problem = "sends no whole answer" if kind in _CUT_ANSWERS else "does not answer"
        if kind in _FORM_ERRORS:
            problem += f" in Rucio's form ({kind})"
        return (RucioSilentError if silent else CatalogueError)(
            f"{problem if silent else kind}: {message}",
            where=where,
            hint="Nothing registered so far is lost: repeat the same command later.",
        )
    is_client_error = type(error).__module__.startswith(("rucio.", "requests."))
    return CatalogueError(f"{kind}: {message}", where=where) if is_client_error else error
