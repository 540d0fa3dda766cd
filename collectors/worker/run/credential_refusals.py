"""Refusals of a job's credentials, recognized in the messages of ROOT, XRootD's client and HTTP clients."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import List, Mapping, NamedTuple

from ...job_spec import SoftwareRequest
from ...record.outcome import CREDENTIAL, NOT_SUPPORTED, Failure
from ...shared_files import local_path
from ...storage_access import READ, REMEDIES, find_limit
from ..probes.credential_checks import (
    CREDENTIAL_NAMES,
    PROXY_VARIABLE,
    credential_expiry,
    format_time,
)
from ..probes.proxy_certificates import read_proxy

#: Messages after which the server accepted no credential at all.
_UNAUTHENTICATED = re.compile(
    r"auth failed|\[3030\]|no protocols left to try|(?:HTTP\S*|error:?|status|code:?) 401(?!\d)|invalid_token"
    r"|(?<!\d)401\W{1,3}(?:auth|client error|message=|unauthorized)|unauthorized \(401\)"
    r"|\balert (?:bad certificate|unknown ca|certificate (?:required|expired|unknown|revoked))",
    re.IGNORECASE,
)
#: Messages of a server that knows the user, but does not permit reading this file.
_FORBIDDEN = re.compile(
    r"\[3010\]|(?<!\d)403(?!\d)[^\n]{0,20}(?:forbidden|permission refused)|forbidden \(403\)|(?:HTTP/\S*|error:?|status|code:?) 403(?!\d)|insufficient.?scope",
    re.IGNORECASE,
)
#: Messages of a client that does not trust the server.
_UNTRUSTED = re.compile(
    r"certificate.?verif(?:y|ication).?failed|certificate is not trusted|unable to verify .*certificate"
    r"|SSL certificate problem|no alternative certificate subject name"
    r"|disallowed for non-TLS connections|self.signed certificate|unable to get local issuer|\[FATAL\] (?:TLS error|Login failed)"
    r"|_CERT_FILE=\S+: ",
    re.IGNORECASE,
)
#: Messages on a certificate that no authority makes valid.
_INVALID = re.compile(r"has expired|not yet valid|hostname|valid for|subject name", re.IGNORECASE)
#: Marks of a line that a client of remote storage wrote, not the payload itself.
_CLIENT_LINE = re.compile(
    r"\[(?:ERROR|FATAL|\d{4})\]|error in <T|\bHTTP|\b(?:https?|davs?|roots?|s3s?)://|ClientResponseError"
    r"|\b(?:SSL|TLS)\b|\bsec_|curl|davix",
    re.IGNORECASE,
)
#: URLs and paths, whose numbers and words are no answer of a server.
_ADDRESS = re.compile(r"(?<!\S)(?!HTTP/)\S*/\S*")
#: Class of ROOT builds without davix and curl.
_WITHOUT_CREDENTIALS = "TWebFile"
#: Failures that a refusal may cause: class, or class and kind.
_CANDIDATES = ("open", "read", "stage-in", "software-setup")
_PAYLOAD_KINDS = ("exit", "exception")

_REMEDIES = {
    "missing": "Submit with --proxy, --token-file or --s3-credentials.",
    "expired": "Renew it, then resume the campaign.",
    "refused": "Check issuer, audience and VO with the site.",
    "not-permitted": "Request a scope or role that covers this path.",
}
#: Kinds that the server's certificate causes, with their remedies.
_DISTRUST = {
    "certificate": "The server's certificate is not valid. Let the site renew it; check the URL's host.",
    "untrusted": "The job does not trust the server's certificate. Name the authorities: "
    "--authorities, the site's cert_dir, or X509_CERT_DIR.",
}


def classify_refusal(
    failure: Failure,
    env: Mapping[str, str],
    urls: List[str],
    software: SoftwareRequest,
    excerpt: str = "",
) -> Failure:
    """Turn a failure of a remote file into one of credentials, if its message says so.

    Args:
        failure: any failure.
        env: the job's environment.
        urls: URLs of the files.
        software: software that opened them.
        excerpt: end of the payload's output, which explains an exception or exit code.
    """
    remote = [url for url in urls if local_path(url) is None]
    texts = _find_explanations(failure, excerpt)
    kinds = (_find_distrust(text) or _find_kind(text, env) for text in texts)
    kind = next(filter(None, kinds), "")
    if not remote or not kind:
        return failure
    kind = kind if kind in _DISTRUST else _find_distrust(excerpt) or kind
    limit = _find_missing_feature(failure, remote[0], software)
    failure_class, cause = CREDENTIAL, _DISTRUST.get(kind, "")
    if limit and not cause:
        failure_class, kind, cause = "software-setup", NOT_SUPPORTED, limit
    cause = cause or f"{_describe_credentials(kind, env)} {_REMEDIES[kind]}"
    return Failure(failure_class, kind, failure.phase, f"{cause} ({failure.message})")


def _find_explanations(failure: Failure, excerpt: str) -> List[str]:
    """List the texts that may name a refusal; none for a failure that a refusal cannot cause."""
    if failure.kind == NOT_SUPPORTED:
        return []
    if failure.failure_class in _CANDIDATES:
        return [failure.message]
    if failure.failure_class != "payload" or failure.kind not in _PAYLOAD_KINDS:
        return []
    lines = (line for text in (failure.message, excerpt) for line in text.splitlines())
    return [line for line in lines if _CLIENT_LINE.search(line)]


def _find_missing_feature(failure: Failure, url: str, software: SoftwareRequest) -> str:
    """Describe why this ROOT presented no credential; '' if it may have presented one."""
    if failure.failure_class != "open":
        return ""
    limit = find_limit(READ, url, software, has_credential=True)
    if not limit and _WITHOUT_CREDENTIALS in failure.message:
        limit = f"TFile's class for {url.partition(':')[0]} in this ROOT, {_WITHOUT_CREDENTIALS}, "
        limit += f"presents no token or proxy. {REMEDIES[READ]}"
    return limit


def _find_distrust(text: str) -> str:
    kind = "certificate" if _INVALID.search(text) else "untrusted"
    return kind if _UNTRUSTED.search(text) else ""


def _find_kind(text: str, env: Mapping[str, str]) -> str:
    answer = _ADDRESS.sub("", text)
    unauthenticated = _UNAUTHENTICATED.search(answer)
    if not unauthenticated and not _FORBIDDEN.search(answer):
        return ""
    credentials = _list_credentials(env)
    if not credentials:
        return "missing"
    if all(credential.end <= time.time() for credential in credentials):
        return "expired"
    return "refused" if unauthenticated else "not-permitted"


class _Credential(NamedTuple):
    """A usable credential of the job.

    Attributes:
        label: for messages.
        end: expiry, infinite if unknown; of a proxy's VOMS attributes if they end first.
        ending: the part that ends then.
    """

    label: str
    end: float
    ending: str


def _list_credentials(env: Mapping[str, str]) -> List[_Credential]:
    """List the usable credentials of the job."""
    credentials = []
    for name in CREDENTIAL_NAMES:
        if env.get(name):
            with suppress(OSError, ValueError):
                credentials.append(_load_credential(name, env[name]))
    return credentials


def _load_credential(name: str, path: str) -> _Credential:
    label = CREDENTIAL_NAMES[name]
    if name != PROXY_VARIABLE:
        end = credential_expiry(name, path)
        return _Credential(label, float("inf") if end is None else end, label)
    proxy = read_proxy(path)
    description = f"{label} ({', '.join(proxy.attributes) or 'no VOMS attributes'})"
    if proxy.attributes_expire_at is not None and proxy.attributes_expire_at < proxy.expires_at:
        return _Credential(description, proxy.attributes_expire_at, f"{label}'s VOMS attributes")
    return _Credential(description, proxy.expires_at, label)


def _describe_credentials(kind: str, env: Mapping[str, str]) -> str:
    credentials = _list_credentials(env)
    if not credentials:
        return "The door requires a credential, and the job has none."
    if kind == "expired":
        last = max(credentials, key=lambda credential: credential.end)
        return f"The job's {last.ending} expired at {format_time(last.end)}."
    names = " and ".join(credential.label for credential in credentials)
    refusal = "does not permit this path with" if kind == "not-permitted" else "refused"
    return f"The door {refusal} the job's {names}."
