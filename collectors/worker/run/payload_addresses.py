"""Addresses that a payload opens: signed ones for objects of an S3 door, caches of a federation.

Other doors are opened as they are.  A signed address works with every HTTP client that reads by GET
alone, such as uproot, davix and curl.  ROOT's wheels have no such client; those that read S3 sign their requests themselves.
Neither records nor logs contain a signature.
"""

from __future__ import annotations

import http.client
import re
import urllib.error
from dataclasses import replace
from typing import Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ...job_spec import InputFile, SoftwareRequest
from ...pelican_director import locate_object
from ...record.outcome import CREDENTIAL, ExecutionError, Failure
from ...s3_signing import (
    MAX_EXPIRY_S,
    REQUEST_EXPIRY_S,
    S3CredentialError,
    S3Keys,
    load_keys,
    sign_address,
)
from ...storage_access import PELICAN_CLIENT, S3_CLIENT, find_scheme
from ..probes.credential_checks import TOKEN_FILE_VARIABLE

#: Series of wheels whose ROOT reads S3 over HTTP, with the older signature (TS3WebFile).
_SIGNING_SERIES = ("6.37", "6.38", "6.39")
_PLAIN_SCHEME = re.compile(r"^s3://", re.IGNORECASE)
#: Seconds between the signature and the start of the payload's clock, at most.
_MARGIN_S = 600.0
#: URL of an object -> its address at a cache.  A director names another cache each time, by chance and
#: load: all executions of a job read at one, which the record names.
_CACHE_ADDRESSES: Dict[str, str] = {}


class PayloadAddresses(NamedTuple):
    """Files as the payload opens them.

    Attributes:
        files: files with their addresses.
        environment: further variables of the payload.
        withheld: variables that the payload must not have.
        are_signed: whether addresses contain signatures.
    """

    files: Tuple[InputFile, ...]
    environment: Mapping[str, str] = {}
    withheld: Sequence[str] = ()
    are_signed: bool = False


def find_addresses(
    files: Sequence[InputFile], software: SoftwareRequest, env: Mapping[str, str], wall_s: float
) -> PayloadAddresses:
    """Find the addresses by which a payload opens files.

    Args:
        files: files with the URLs of their door.
        software: software that opens them.
        env: environment with the job's credentials.
        wall_s: wall limit of the payload, 0 for none.

    Raises:
        ExecutionError: class ``credential``: the S3 keys cannot be used; class ``open``: the
            federation or its director names no cache.
    """
    if not any(is_s3(file.url) for file in files):
        return PayloadAddresses(tuple(replace(f, url=locate_url(f.url, env)) for f in files))
    if software.provider == "wheel":
        return _spell_for_wheel(files, software, env)
    expires_s = wall_s + _MARGIN_S if wall_s else float(MAX_EXPIRY_S)
    signed = tuple(replace(f, url=sign_url(f.url, env, expires_s)) for f in files)
    # Object stores refuse a request with a token beside the signature.
    return PayloadAddresses(signed, {}, (TOKEN_FILE_VARIABLE, "BEARER_TOKEN"), are_signed=True)


def _spell_for_wheel(
    files: Sequence[InputFile], software: SoftwareRequest, env: Mapping[str, str]
) -> PayloadAddresses:
    """Spell the URLs as a wheel's ROOT opens them; others are left to its own message."""
    if software.version.rpartition(".")[0] not in _SIGNING_SERIES:
        return PayloadAddresses(tuple(files))
    spelled = tuple(replace(f, url=_PLAIN_SCHEME.sub("s3http://", f.url)) for f in files)
    keys = _load_keys(files[0].url, env)
    if keys is None:
        return PayloadAddresses(spelled)
    variables = {"S3_ACCESS_KEY": keys.access_key, "S3_SECRET_KEY": keys.secret_key}
    return PayloadAddresses(spelled, variables)


def is_s3(url: str) -> bool:
    """Return whether a URL is one of an object store."""
    scheme = find_scheme(url)
    return scheme is not None and scheme.client == S3_CLIENT


def sign_url(url: str, env: Mapping[str, str], expires_s: float = REQUEST_EXPIRY_S) -> str:
    """Return the address of an object, signed for GET; other URLs as they are.

    Raises:
        ExecutionError: class ``credential``: the S3 keys cannot be used.
    """
    return sign_address("GET", url, _load_keys(url, env), expires_s) if is_s3(url) else url


def locate_url(url: str, env: Mapping[str, str], failure_class: str = "open") -> str:
    """Return the address of an object at a cache of its federation; other URLs as they are.

    A worker asks the director for each object once.

    Raises:
        ExecutionError: class ``failure_class``, kind ``missing`` or ``director``.
    """
    scheme = find_scheme(url)
    if scheme is None or scheme.client != PELICAN_CLIENT:
        return url
    kind = "director"
    try:
        if url not in _CACHE_ADDRESSES:
            _CACHE_ADDRESSES[url] = locate_object(url, env)
        return _CACHE_ADDRESSES[url]
    except urllib.error.HTTPError as error:
        error.close()
        kind, reason = ("missing" if error.code == 404 else kind), str(error)
    except urllib.error.URLError as error:
        reason = str(error.reason)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error)
    message = f"{url}: the federation and its director name no cache: {reason}."
    raise ExecutionError(Failure(failure_class, kind, failure_class, message, kind != "missing"))


def _load_keys(url: str, env: Mapping[str, str]) -> Optional[S3Keys]:
    try:
        return load_keys(url, env)
    except S3CredentialError as error:
        message = f"{error}. Submit with other keys."
        raise ExecutionError(Failure(CREDENTIAL, "invalid", "setup", message)) from None
