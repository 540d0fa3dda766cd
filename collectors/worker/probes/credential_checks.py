"""Credentials of a job: location and expiry of proxy, token and S3 keys, certificate authorities."""

from __future__ import annotations

import base64
import os
import re
import time
from contextlib import suppress
from typing import Any, Dict, Mapping, Optional

from ...json_documents import decode_json
from ...record.outcome import CREDENTIAL, ExecutionError, Failure
from ...s3_signing import CREDENTIALS_VARIABLE, S3CredentialError, read_keys
from ...storage_access import BUNDLE_VARIABLES, CERT_DIR_VARIABLE
from .proxy_certificates import read_proxy

# Messages name files and times only, never content.

#: Variables that name the files.
PROXY_VARIABLE, TOKEN_FILE_VARIABLE = "X509_USER_PROXY", "BEARER_TOKEN_FILE"
CREDENTIAL_NAMES = {
    PROXY_VARIABLE: "x509 proxy",
    TOKEN_FILE_VARIABLE: "bearer token",
    CREDENTIALS_VARIABLE: "file of S3 keys",
}

#: Upper bound of a credential's size.
_MAX_BYTES = 1_000_000
_UNREADABLE_CLAIMS = "its claims cannot be read"


def resolve_credentials(env: Dict[str, str], job_folder: str) -> None:
    """Make the credential paths in ``env`` absolute, since payloads run in folders of their own.

    A relative path belongs to the job's sandbox.  Without a named token, the only token of
    HTCondor's credential services is used; clients read it as it is now, without its JSON.
    """
    creds = env.get("_CONDOR_CREDS", "")
    bare = os.path.join(creds, "bearer-token")
    if env.get(TOKEN_FILE_VARIABLE, bare) == bare and os.path.isdir(creds):
        tokens = sorted(name for name in os.listdir(creds) if name.endswith(".use"))
        if len(tokens) == 1:
            env[TOKEN_FILE_VARIABLE] = os.path.join(creds, tokens[0])
            with suppress(OSError, ValueError, TypeError, KeyError):
                with open(env[TOKEN_FILE_VARIABLE], "rb") as stream:
                    token = decode_json(stream.read(_MAX_BYTES))["access_token"]
                with os.fdopen(os.open(bare, os.O_WRONLY | os.O_CREAT, 0o600), "w") as copy:
                    copy.truncate(copy.write(token))
                env[TOKEN_FILE_VARIABLE] = bare
    for name in CREDENTIAL_NAMES:
        if env.get(name) and not os.path.isabs(env[name]):
            env[name] = os.path.join(job_folder, env[name])
            with suppress(OSError):  # check_credentials reports the problem
                os.chmod(env[name], 0o600)  # clients reject files that others can read


def check_credentials(env: Mapping[str, str]) -> None:
    """Check that the credentials in ``env`` are usable now.

    Raises:
        ExecutionError: class ``credential``, kind ``invalid`` or ``expired``.
    """
    for name, label in CREDENTIAL_NAMES.items():
        path = env.get(name)
        if not path:
            continue
        try:
            end = credential_expiry(name, path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            message = f"The {label} {path} cannot be used: {reason}. Submit with another one."
            raise ExecutionError(Failure(CREDENTIAL, "invalid", "setup", message)) from error
        if end is not None and end <= time.time():
            message = f"The {label} {path} expired at {format_time(end)}. Renew it, then resume the campaign."
            raise ExecutionError(Failure(CREDENTIAL, "expired", "setup", message))


def format_time(seconds: float) -> str:
    """Format a time in seconds since 1970 for messages."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def credential_expiry(name: str, path: str) -> Optional[float]:
    """Return a credential's expiry in seconds since 1970; None when it states none.

    Args:
        name: a variable of :data:`CREDENTIAL_NAMES`.
        path: the credential's file.

    Raises:
        OSError: the file cannot be read.
        ValueError: not a credential; the message repeats no content.
    """
    if name == PROXY_VARIABLE:
        return read_proxy(path).expires_at
    if name == CREDENTIALS_VARIABLE:
        try:
            read_keys(path)
        except S3CredentialError as error:
            raise ValueError(str(error)) from None
        return None
    with open(path, "rb") as stream:
        return token_expiry(stream.read(_MAX_BYTES).decode("ascii", "replace").strip())


def token_expiry(text: str) -> Optional[float]:
    """Return a token's expiry in seconds since 1970; None when it states none.

    Raises:
        ValueError: not a token; the message repeats no content.
    """
    end = token_claims(text).get("exp")
    try:
        return None if end is None else float(end)
    except (ValueError, TypeError):
        raise ValueError(_UNREADABLE_CLAIMS) from None


def token_claims(text: str) -> Dict[str, Any]:
    """Return a token's claims, unverified; empty when it is opaque to all but its issuer.

    Raises:
        ValueError: not a token; the message repeats no content.
    """
    parts = text.split(".")
    if not text or any(c.isspace() for c in text):
        raise ValueError("it is empty or not a single token")
    if len(parts) != 3:
        return {}
    try:
        return dict(decode_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))))
    except (ValueError, TypeError):
        raise ValueError(_UNREADABLE_CLAIMS) from None


#: Line before each certificate of a bundle that was made of a folder.
FILE_LINE = "# file: {}\n"
_NAMED_CERTIFICATE = re.compile(
    r"^# file: ([0-9a-f]{8}\.\d)\n(-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n)",
    re.DOTALL | re.MULTILINE,
)


def unpack_authorities(env: Dict[str, str], job_folder: str, target: str) -> None:
    """Make the path of a job's bundle absolute, and unpack it for clients that need a folder.

    XRootD's x509 authentication reads a folder only.  A bundle that was not made of a folder has no
    hashed names and stays a bundle.

    Args:
        env: environment, which is changed.
        job_folder: folder of a relative bundle.
        target: new folder for the certificates.
    """
    name = BUNDLE_VARIABLES[0]
    if not env.get(name) or os.path.isabs(env[name]):
        return
    env[name] = os.path.join(job_folder, env[name])
    with suppress(OSError):  # the door's certificate is not trusted then
        with open(env[name], encoding="ascii", errors="replace") as stream:
            certificates = _NAMED_CERTIFICATE.findall(stream.read())
        if not certificates:
            return
        os.makedirs(target, exist_ok=True)
        for file, text in certificates:
            with open(os.path.join(target, file), "w", encoding="ascii") as stream:
                stream.write(text)
        env[CERT_DIR_VARIABLE] = target
