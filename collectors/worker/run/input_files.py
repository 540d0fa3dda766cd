"""Input of an execution: size checks and copies to the node.

Remote files are copied with the xroot protocol by the job's ROOT, with HTTP by Python.
"""

from __future__ import annotations

import http.client
import os
import resource
import subprocess
import time
import urllib.error
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, List, Mapping, NoReturn, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ...http_answers import require_file
from ...http_requests import MIN_BYTES_PER_S, NO_TOKEN, BearerToken, Deadline, send_request
from ...job_spec import InputFile, SoftwareRequest
from ...record.outcome import CREDENTIAL, NOT_SUPPORTED, ExecutionError, Failure
from ...s3_errors import MAX_ERROR_BYTES, read_error
from ...s3_signing import mask_signatures
from ...shared_files import DISK_FULL_ERRNOS, local_path
from ...software.providers import SoftwareSetup
from ...storage_access import (
    HTTP_CLIENT,
    PELICAN_CLIENT,
    S3_CLIENT,
    STAGE,
    find_limit,
    find_scheme,
    make_tls_context,
)
from ..child_processes import StopSignals
from ..probes.credential_checks import TOKEN_FILE_VARIABLE
from .payload_addresses import is_s3, locate_url, sign_url
from .xrootd_settings import write_root_settings

# A file is local when its URL has no scheme or ``file:``.

_CHUNK = 4 * 1024 * 1024
PLACE_HINT = "Place the dataset at this door."


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of wall and CPU time."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True)
class StagedFiles:
    """Files copied to the node, and the time spent.

    ``wall_s`` and ``cpu_s`` cover copying and verifying; ``software_loading`` is the time before that
    for loading the software that copies.
    """

    files: Tuple[InputFile, ...]
    wall_s: float
    cpu_s: float
    bytes: int
    software_loading: TimeSpent


def find_common_folder(files: Sequence[InputFile]) -> Optional[str]:
    """Find the folder that contains all local files; None without local files."""
    paths = [os.path.abspath(path) for path in (local_path(f.url) for f in files) if path]
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return folder if os.path.isdir(folder) else None


def check_sizes(files: Sequence[InputFile], failure_class: str) -> None:
    """Compare the sizes of local files with the manifest.

    Raises:
        ExecutionError: class ``failure_class``, kind ``missing``, ``not-permitted`` or ``size``.
    """
    for file in files:
        path = local_path(file.url)
        if path is None:
            continue
        try:
            size = os.stat(path).st_size
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # a pipe does not block
        except OSError as error:
            kind, remedy = "missing", PLACE_HINT
            if isinstance(error, PermissionError):
                kind, remedy = "not-permitted", "Let the user of the jobs read it."
            message = f"{file.url} cannot be read: {error.strerror}. {remedy}"
            raise ExecutionError(Failure(failure_class, kind, failure_class, message)) from error
        if size != file.size:
            actual = "is a folder" if os.path.isdir(path) else f"has {size} bytes"
            message = (
                f"{file.url} {actual}, the manifest says {file.size} bytes: it is another file "
                "or incomplete. Make or place the dataset again."
            )
            raise ExecutionError(Failure(failure_class, "size", failure_class, message))


#: Copies a remote file to a file on the node; returns the time spent before the copy itself.
Fetch = Callable[[InputFile, str], TimeSpent]


def stage_files(
    files: Sequence[InputFile], folder: str, signals: StopSignals, fetch: Fetch
) -> StagedFiles:
    """Copy files to ``folder`` and verify size and adler32 of the copies.

    Args:
        files: files to copy.
        folder: target folder.
        signals: signals that interrupt the copy.
        fetch: copies a remote file.

    Raises:
        ExecutionError: class ``stage-in``, kind ``not-supported``, ``size``, ``checksum`` or ``copy``; class
            ``evicted``.
    """
    start, cpu = time.monotonic(), measure_own_cpu_s()
    copied = [_copy_file(file, folder, index, signals, fetch) for index, file in enumerate(files)]
    wall_s, cpu_s = time.monotonic() - start, measure_own_cpu_s() - cpu
    loading = TimeSpent(
        sum(spent.wall_s for _, spent in copied), sum(spent.cpu_s for _, spent in copied)
    )
    return StagedFiles(
        files=tuple(file for file, _ in copied),
        wall_s=wall_s - loading.wall_s,
        # The copying software's own clock may exceed the kernel's accounting.
        cpu_s=max(cpu_s - loading.cpu_s, 0.0),
        bytes=sum(file.size for file in files),
        software_loading=loading,
    )


def measure_own_cpu_s() -> float:
    """Measure the CPU seconds of the worker and its reaped children."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def _copy_file(
    file: InputFile, folder: str, index: int, signals: StopSignals, fetch: Fetch
) -> Tuple[InputFile, TimeSpent]:
    """Copy one file; return it with its local path, and the time spent before the copy."""
    source = local_path(file.url)
    # Files of a dataset may share their base name, which payloads see; hence a folder for each.
    target = os.path.join(folder, str(index), os.path.basename(file.name))
    try:
        os.makedirs(os.path.dirname(target))
        if source is None:
            loading = fetch(file, target)
            size, checksum = _copy_bytes(target, os.devnull, signals)
        else:
            loading = TimeSpent()
            size, checksum = _copy_bytes(source, target, signals)
    except OSError as error:
        if error.errno in DISK_FULL_ERRNOS:
            raise
        message = f"{file.url} cannot be copied to the node: {error.strerror or error}."
        _raise_stage_in_error(message)
    if size != file.size:
        message = (
            f"{file.url}: {size} bytes came to the node, the manifest says {file.size}: the copy was "
            "cut short, or it is another file."
        )
        _raise_stage_in_error(message, "size")
    if checksum != file.adler32.lower():
        message = (
            f"{file.url} has adler32 {checksum}, the manifest says {file.adler32}: its content "
            "changed. Make or place the dataset again."
        )
        _raise_stage_in_error(message, "checksum")
    return replace(file, url=target), loading


def _copy_bytes(source: str, target: str, signals: StopSignals) -> Tuple[int, str]:
    """Copy a file; return the size and the adler32 (8 hex digits) of the bytes read."""
    size, checksum = 0, 1
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while True:
            signals.raise_if_stopped("stage-in")
            chunk = reader.read(_CHUNK)
            if not chunk:
                return size, f"{checksum:08x}"
            size += len(chunk)
            checksum = zlib.adler32(chunk, checksum)
            writer.write(chunk)


#: Seconds that ROOT may take to begin a copy.
_ROOT_START_S = 300.0
#: Seconds between checks for a stop signal.
_POLL_INTERVAL_S = 0.2
#: Characters of a copy's output that its failure keeps.
_MAX_ERROR_LENGTH = 500

#: Copies once everything needed is loaded, and records the time and CPU spent until then.  The first
#: call, which must fail, makes the JIT emit the function.  ROOT's teardown is skipped.
_COPY_SCRIPT = """import os, sys, time
import ROOT
copy, level = ROOT.TFile.Cp, ROOT.gErrorIgnoreLevel
handler = ROOT.gROOT.GetPluginManager().FindHandler("TFile", sys.argv[1])
if handler:
    handler.LoadPlugin()
ROOT.gErrorIgnoreLevel = ROOT.kFatal
copy(sys.argv[3], sys.argv[3], False, 1024)
ROOT.gErrorIgnoreLevel = level
with open(sys.argv[3], "w") as stream:
    stream.write(f"{time.monotonic()} {time.process_time()}")
good = copy(sys.argv[1], sys.argv[2], False, 16 * 1024 * 1024)
sys.stdout.flush()
os._exit(not good)
"""


def fetch_remote_file(
    setup: SoftwareSetup,
    software: SoftwareRequest,
    file: InputFile,
    target: str,
    signals: StopSignals,
) -> TimeSpent:
    """Copy a remote file to the file ``target``.

    Args:
        setup: ROOT that copies ``root://`` and ``roots://``.
        software: the request for it.
        file: file to copy, with its expected size.
        target: new file on the node.
        signals: signals that interrupt the copy.

    Returns:
        the time spent on loading ROOT before the copy.

    Raises:
        ExecutionError: class ``stage-in``, kind ``not-supported`` or ``copy``; class ``evicted``.
        OSError: the node's disk or an HTTP server fails.
    """
    url = file.url
    scheme = find_scheme(url)
    if scheme and scheme.client in (HTTP_CLIENT, S3_CLIENT, PELICAN_CLIENT):
        try:
            file = replace(file, url=locate_url(url, setup.env, "stage-in"))
            _fetch_http_file(setup.env, file, target, signals)
        except http.client.HTTPException as error:
            reason = mask_signatures(f"{type(error).__name__}: {error}")
            _raise_stage_in_error(
                f"{url} cannot be copied to the node: invalid response of the server ({reason})"
            )
        return TimeSpent()
    limit = find_limit(STAGE, url, software, has_credential=False)
    if limit:
        _raise_stage_in_error(f"{url} cannot be staged: {limit}", NOT_SUPPORTED)
    script, loaded = (os.path.join(os.path.dirname(target), name) for name in ("copy.py", "loaded"))
    Path(script).write_text(_COPY_SCRIPT, encoding="utf-8")
    write_root_settings(os.path.dirname(target), [url])
    start = time.monotonic()
    _run_copy(
        [*setup.build_command("python", script), url, target, loaded],
        setup.env,
        os.path.dirname(target),
        url,
        signals,
        _ROOT_START_S + file.size / MIN_BYTES_PER_S,
    )
    started_s, cpu = map(float, Path(loaded).read_text(encoding="utf-8").split())
    os.unlink(script)
    os.unlink(loaded)
    return TimeSpent(started_s - start, cpu)


def _run_copy(
    command: List[str],
    env: Mapping[str, str],
    folder: str,
    url: str,
    signals: StopSignals,
    limit_s: float,
) -> None:
    end = time.monotonic() + limit_s
    process = subprocess.Popen(
        command,
        env=dict(env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = b""
    try:
        while True:
            signals.raise_if_stopped("stage-in")
            if time.monotonic() > end:
                _raise_stage_in_error(
                    f"{url} cannot be copied to the node: not done after {limit_s:.0f} s"
                )
            with suppress(subprocess.TimeoutExpired):
                output, _ = process.communicate(timeout=_POLL_INTERVAL_S)
                break
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        reason = output.decode("utf-8", "replace").strip()[-_MAX_ERROR_LENGTH:]
        reason = reason or "ROOT gave no reason"
        _raise_stage_in_error(f"{url} cannot be copied to the node: {reason}")


def _fetch_http_file(
    env: Mapping[str, str], file: InputFile, target: str, signals: StopSignals
) -> None:
    url = file.url
    context, token = None, NO_TOKEN
    address = sign_url(url, env)
    if urlsplit(address).scheme == "https":
        context = make_tls_context(env)
        if address == url and env.get(TOKEN_FILE_VARIABLE):
            text = Path(env[TOKEN_FILE_VARIABLE]).read_text(encoding="ascii")
            token = BearerToken.for_door(text.strip(), url, env)
    deadline = Deadline.for_transfer()
    try:
        response = send_request("GET", address, deadline, token=token, context=context)
    except urllib.error.HTTPError as error:
        with error:
            _raise_http_error(url, error, has_keys=address != url)
    except OSError as error:
        server = f" at {error.filename2}" if error.filename2 else ""
        raise OSError(f"{error.strerror or error.args[-1]}{server}") from error
    with response, open(target, "wb") as writer:
        require_file(response.status, response.headers)
        while writer.tell() <= file.size:  # a longer one is another file
            signals.raise_if_stopped("stage-in")
            if not writer.write(response.read(_CHUNK)):
                break


def _raise_http_error(url: str, error: urllib.error.HTTPError, *, has_keys: bool) -> NoReturn:
    """Raise what an error in the answer of a server, or of an object store, means."""
    if not is_s3(url):
        if error.code in (404, 410):
            _raise_stage_in_error(f"{url} cannot be read: {error}. {PLACE_HINT}", "missing")
        if error.code < 500 and error.code not in (408, 425, 429):
            _raise_stage_in_error(f"{url} cannot be copied to the node: {error}.", "request")
        raise OSError(str(error)) from None
    answer = read_error(error.code, error.headers, error.read(MAX_ERROR_BYTES), has_keys=has_keys)
    cause = answer.cause
    error_text = f"{error.code} {answer.text}".strip()
    remedy = cause.remedy or PLACE_HINT
    message = f"{url} cannot be copied to the node: the object store answers {error_text}. {remedy}"
    failure_class = CREDENTIAL if cause.is_credential else "stage-in"
    failure = Failure(failure_class, cause.kind, "stage-in", message, cause.is_transient)
    raise ExecutionError(failure) from None


def _raise_stage_in_error(message: str, kind: str = "copy") -> NoReturn:
    raise ExecutionError(Failure("stage-in", kind, "stage-in", message, kind in ("copy", "size")))
