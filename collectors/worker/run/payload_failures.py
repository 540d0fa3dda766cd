"""Failure that a payload's end means: its exit, the cause of a crash, refused credentials.

Causes are recognized in the messages of ROOT, XRootD's client, compilers and HTTP clients; the words of
the payload itself decide none.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import replace
from typing import Iterable, Iterator, List, Mapping, NamedTuple, Optional, Pattern

from ...job_spec import ExecutionLimits, SoftwareRequest
from ...record import node_needs
from ...record.outcome import CREDENTIAL, FORCED_KINDS, NOT_SUPPORTED, Failure
from ...shared_files import local_path, read_file_end
from ...storage_access import READ, REMEDIES, find_limit
from ..probes.credential_checks import (
    CREDENTIAL_NAMES,
    PROXY_VARIABLE,
    credential_expiry,
    format_time,
    read_proxy,
)
from ..probes.node_check import NodeCheck
from . import execution_record, payload_process

#: A disk with less free bytes is full: some are reserved, and files take whole blocks.
MIN_FREE_BYTES = 65536

#: Bytes of a payload's log that are searched for the cause of a crash.
_MAX_LOG_BYTES = 16_000_000


def classify_failure(
    outcome: payload_process.ProcessOutcome,
    reported: execution_record.PayloadResult,
    limits: ExecutionLimits,
    out_of_memory: bool,
) -> Optional[Failure]:
    """Classify the failure of a payload, None for success.

    An end forced by the worker takes precedence, then a failure that the payload reports, then its
    exit status.  ``out_of_memory``: the OOM killer ended a process meanwhile.
    """
    if outcome.ended_by:
        return _forced_end(outcome.ended_by, limits)
    # A shell reports a killed child by its exit code.
    killed = outcome.exit_signal == signal.SIGKILL or outcome.exit_code == 128 + signal.SIGKILL
    if killed and out_of_memory:
        message = "The kernel killed the payload: out of memory (its OOM counter rose meanwhile)."
        return _payload_failure("memory", message, transient=True)
    if reported.failure:
        is_forced = reported.failure.kind in FORCED_KINDS
        kind = f"reported-{reported.failure.kind}" if is_forced else reported.failure.kind
        return replace(reported.failure, kind=kind)
    if outcome.exit_signal is not None:
        core = ", core dumped" if outcome.core_dumped else ""
        message = f"The payload was ended by {_signal_name(outcome.exit_signal)}{core}."
        return _payload_failure("signal", message)
    if outcome.exit_code:
        message = f"The payload ended with exit code {outcome.exit_code}."
        return _payload_failure("exit", message)
    return reported.problem


def _forced_end(reason: str, limits: ExecutionLimits) -> Failure:
    """Return the failure of a payload that the worker ended."""
    return {
        "stop": Failure(
            "evicted",
            "stopped",
            "payload",
            "The worker was asked to stop and ended the payload.",
            transient=True,
        ),
        "timeout": _payload_failure(
            "timeout",
            f"The payload ran longer than its wall limit of {limits.wall_s:g} s and was ended. "
            "Raise wall_limit_s in test.toml or read less.",
            transient=True,
        ),
        "memory": _payload_failure(
            "memory",
            f"The payload's processes used more than their limit of {limits.memory_bytes} bytes "
            "and were ended. Use less, or raise memory_limit_mb in test.toml, and ceilings.memory_mb of "
            "the site if it is less.",
        ),
    }[reason]


def _payload_failure(kind: str, message: str, *, transient: bool = False) -> Failure:
    return Failure("payload", kind, "payload", message, transient)


def name_cause(failure: Failure, log: str) -> Failure:
    """Add the cause that a payload's log names: of a crash, an exit, or code that does not compile."""
    if failure.failure_class != "payload":
        return failure
    if failure.kind == "compile" and (error := find_compiler_error(log)):
        return replace(failure, message=f"{failure.message}: {error}")
    if failure.kind not in ("signal", "exit"):
        return failure
    return replace(failure, message=f"{failure.message} {describe_crash(log)}".rstrip())


def read_log(path: str) -> tuple[str, str]:
    """Read the end of a payload's log; the second text says why it cannot be read, '' if it can."""
    try:
        return read_file_end(path, _MAX_LOG_BYTES), ""
    except OSError as error:
        return "", f"Its log cannot be read: {error.strerror}."


def attribute_to_full_disk(failure: Failure, folder: str) -> Failure:
    """Name a full disk as the cause of a payload's failure, if its work folder has no room."""
    full = shutil.disk_usage(folder).free < MIN_FREE_BYTES
    if not full or failure.failure_class != "payload" or failure.kind == "memory":
        return failure
    disk = os.path.realpath(folder)
    while not os.path.ismount(disk):
        disk = os.path.dirname(disk)
    message = (
        f"{failure.message} The disk of its work folder is full, {disk}: make room there, or let "
        "the payload write less."
    )
    return replace(failure, kind="disk-full", message=message, transient=True)


def attribute_to_headers(failure: Failure, log: str, node: NodeCheck) -> Failure:
    """Name the headers that a node lacks as the cause of a payload's failure, if one was not found."""
    is_headers = node_needs.HEADERS in node.lacks and _MISSING_HEADER.search(log)
    if failure.failure_class not in ("payload", "software-setup") or not is_headers:
        return failure
    return _attribute_to_node(failure, node_needs.HEADERS, node)


def attribute_to_compiler(failure: Failure, node: NodeCheck) -> Failure:
    """Name the compiler that a node lacks as the cause of a failed build."""
    if failure.failure_class != "build" or node_needs.COMPILER not in node.lacks:
        return failure
    return _attribute_to_node(failure, node_needs.COMPILER, node)


def _attribute_to_node(failure: Failure, name: str, node: NodeCheck) -> Failure:
    message = f"{node.describe(name)} ({failure.message})"
    return Failure("software-setup", name, failure.phase, message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def check_root_version(requested: str, reported: Optional[str]) -> Optional[Failure]:
    """Refuse a measurement whose ROOT has another version than requested."""
    if not requested or reported is None or reported == requested:
        return None
    message = (
        f"The payload ran with ROOT {reported} instead of the requested {requested}: the "
        "measurement is refused. Check the paths that the set-up of this ROOT adds."
    )
    return Failure("software-setup", "version", "payload", message)


# --- Causes of crashes

#: Frames of a crash that a message names.
MAX_FRAMES = 3
#: Longest line that a message quotes, in characters.
MAX_LINE = 300

#: Lines that name the cause, the most specific first; the last such line of the output counts.
_DECISIVE_LINES = (
    re.compile(r"^Fatal in <.*", re.MULTILINE),
    re.compile(r"^(?:  )?what\(\): .*", re.MULTILINE),
    re.compile(r"^\w*(?:Error|Exception): .*", re.MULTILINE),
)
_ROOT_ERROR = re.compile(r"^(?:Sys)?Error in <.*", re.MULTILINE)
#: Messages of the C library on a damaged heap.
_HEAP_DAMAGE = re.compile(
    r"^(?:free|malloc|realloc|munmap_chunk|double free|corrupted)\b.*", re.MULTILINE
)
_FRAME = re.compile(r"^(?P<library>\S+?)\((?P<symbol>_Z\w+)\+0x[0-9a-f]+\) ?\[", re.MULTILINE)
#: Libraries whose frames do not show the cause: the interpreters' and the C library's.
_FOREIGN_LIBRARY = re.compile(r"/(?:libc|libpthread|libpython|python|libstdc\+\+|libCling)[^/]*$")
#: Message of a compiler with its file and line: gcc, clang and cling.
_COMPILER_ERROR = re.compile(r"^\S[^\n:]*:\d+(?::\d+)?: (?:fatal )?error: .*", re.MULTILINE)
_MISSING_HEADER = re.compile(r"error: '?[\w./+-]+'?(?: file not found|: No such file)")
_MISSING_DICTIONARY = re.compile(r"no dictionary for class (\S+) is available")


def find_compiler_error(log: str) -> str:
    """Find the first error of a compiler, with its file and line; '' if there is none.

    Later errors often follow from the first.
    """
    match = _COMPILER_ERROR.search(log)
    return match[0].strip()[:MAX_LINE] if match else ""


def excerpt_compiler_error(log: str, characters: int) -> str:
    """Return the log from the first error of a compiler on; '' if there is none."""
    match = _COMPILER_ERROR.search(log)
    return log[match.start() :][:characters].strip() if match else ""


def describe_crash(log: str) -> str:
    """Describe the cause of a payload's crash in one or two sentences; '' if the log has none."""
    text = _find_last_line(log, _DECISIVE_LINES) or find_compiler_error(log)
    if not text:
        frames = list(_find_frames(log))
        error = _find_last_line(log, (_ROOT_ERROR,))
        text = f"It crashed in {', called by '.join(frames)}." if frames else ""
        if not frames and (damage := _find_last_line(log, (_HEAP_DAMAGE,))):
            text = f"Reading damaged the memory: {damage}"
        text = f"{text} ROOT's last error: {error}".strip() if error else text
    classes = sorted(set(_MISSING_DICTIONARY.findall(log)))
    if text and classes:
        names_text = ", ".join(classes[:MAX_FRAMES]) + (", …" if len(classes) > MAX_FRAMES else "")
        text += (
            f' No dictionary for {names_text}: read branches = "readable", exclude the branch, or load its '
            "library (load in test.toml)."
        )
    return text


def _find_last_line(log: str, patterns: Iterable[Pattern[str]]) -> str:
    """Return the last line that the first successful pattern matches, as a sentence."""
    for pattern in patterns:
        matches = pattern.findall(log)
        if matches:
            line = str(matches[-1]).strip()[:MAX_LINE]
            return line if line.endswith(".") else f"{line}."
    return ""


def _find_frames(log: str) -> Iterator[str]:
    """Yield the innermost C++ functions of a crash, without repetitions."""
    names: List[str] = []
    for match in _FRAME.finditer(log):
        name = demangle_name(match["symbol"])
        if name and name not in names and not _FOREIGN_LIBRARY.search(match["library"]):
            names.append(name)
            yield name
            if len(names) == MAX_FRAMES:
                return


def demangle_name(symbol: str) -> Optional[str]:
    """Return the qualified name of a C++ function, without parameters; None if it is unusual.

    >>> demangle_name("_ZN14TBranchElement10ReadLeavesER7TBuffer")
    'TBranchElement::ReadLeaves'
    """
    remaining = symbol[2:]
    nested = remaining.startswith("N")
    remaining = remaining.lstrip("NKVrL") if nested else remaining
    parts: List[str] = []
    while True:
        size = re.match(r"\d+", remaining)
        if size is None:
            break
        start = size.end()
        parts.append(remaining[start : start + int(size[0])])
        remaining = remaining[start + int(size[0]) :]
        if not nested:
            break
    return "::".join(parts) or None


# --- Refused credentials

#: Messages after which the server accepted no credential at all.
_UNAUTHENTICATED = re.compile(
    r"auth failed|no protocols left to try|(?<!\d)401(?!\d)|unauthorized|invalid.?token"
    r"|sslv3 alert bad certificate|tlsv1\d? alert (?:unknown ca|certificate required)",
    re.IGNORECASE,
)
#: Messages of a server that knows the user, but does not permit reading this file.
_FORBIDDEN = re.compile(
    r"\[3010\]|(?<!\d)403(?!\d)[^\n]{0,20}forbidden|forbidden \(403\)|http error 403|status 403(?!\d)|insufficient.?scope",
    re.IGNORECASE,
)
#: Messages of a client that does not trust the server.
_UNTRUSTED = re.compile(
    r"certificate.?verify.?failed|certificate is not trusted|unable to verify .*certificate"
    r"|disallowed for non-TLS connections|self.signed certificate|unable to get local issuer|\[FATAL\] TLS error",
    re.IGNORECASE,
)
#: Marks of a line that a client of remote storage wrote, not the payload itself.
_CLIENT_LINE = re.compile(
    r"\[(?:ERROR|FATAL|\d{4})\]|error in <T|\bHTTP|\b(?:https?|davs?|roots?|s3s?)://|ClientResponseError"
    r"|\b(?:SSL|TLS)\b|\bsec_|curl|davix",
    re.IGNORECASE,
)
#: URLs and paths, whose numbers and words are no answer of a server.
_ADDRESS = re.compile(r"\S*/\S*")
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
    "untrusted": "Name the authorities: --authorities, the site's cert_dir, or X509_CERT_DIR.",
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
    kind = next(filter(None, (_find_kind(text, env) for text in texts)), "")
    if not remote or not kind:
        return failure
    if _UNTRUSTED.search(excerpt):
        kind = "untrusted"
    limit = _find_missing_feature(failure, remote[0], software)
    if limit and kind != "untrusted":
        return replace(
            failure,
            failure_class="software-setup",
            kind=NOT_SUPPORTED,
            message=f"{limit} ({failure.message})",
            transient=False,
        )
    message = f"{_describe_credentials(kind, env)} {_REMEDIES[kind]} ({failure.message})"
    return replace(failure, failure_class=CREDENTIAL, kind=kind, message=message, transient=False)


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


def _find_kind(text: str, env: Mapping[str, str]) -> str:
    if _UNTRUSTED.search(text):
        return "untrusted"
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
            try:
                credentials.append(_load_credential(name, env[name]))
            except (OSError, ValueError):
                continue
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
    if kind == "untrusted":
        return "The job does not trust the server's certificate."
    credentials = _list_credentials(env)
    if not credentials:
        return "The door requires a credential, and the job has none."
    if kind == "expired":
        last = max(credentials, key=lambda credential: credential.end)
        return f"The job's {last.ending} expired at {format_time(last.end)}."
    names = " and ".join(credential.label for credential in credentials)
    if kind == "not-permitted":
        return f"The door does not permit this path with the job's {names}."
    return f"The door refused the job's {names}."
