"""Copies of remote files to the node: xroot by the job's ROOT, HTTP by Python."""

from __future__ import annotations

import http.client
import os
import subprocess
import time
import urllib.error
from typing import List, Mapping
from urllib.parse import urlsplit

from ...http_requests import (
    MIN_BYTES_PER_S,
    NO_TOKEN,
    BearerToken,
    Deadline,
    send_request,
)
from ...job_spec import InputFile, SoftwareRequest
from ...record.failures import NOT_SUPPORTED, ExecutionError, Failure
from ...software.providers import SoftwareSetup
from ...storage_schemes import HTTP_CLIENT, STAGE, find_limit, find_scheme
from ...tls_context import make_tls_context
from ..payload.root_settings import write_root_settings
from ..probes.credential_checks import TOKEN_FILE_VARIABLE
from ..stop_signals import StopSignals
from .input_files import TimeSpent

#: Seconds that ROOT may take to begin a copy.
_ROOT_START_S = 300.0
#: Seconds between checks for a stop signal.
_POLL_INTERVAL_S = 0.2
_CHUNK = 4 * 1024 * 1024
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
    if scheme and scheme.client == HTTP_CLIENT:
        try:
            _fetch_http_file(setup.env, file, target, signals)
        except http.client.HTTPException as error:
            reason = f"{type(error).__name__}: {error}"
            _raise_stage_in_error(
                f"{url} cannot be copied to the node: invalid response of the server ({reason})"
            )
        return TimeSpent()
    limit = find_limit(STAGE, url, software, has_credential=False)
    if limit:
        message = f"{url} cannot be staged: {limit}"
        raise ExecutionError(Failure("stage-in", NOT_SUPPORTED, "stage-in", message))
    script, loaded = (os.path.join(os.path.dirname(target), name) for name in ("copy.py", "loaded"))
    with open(script, "w", encoding="utf-8") as stream:
        stream.write(_COPY_SCRIPT)
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
    with open(loaded, encoding="utf-8") as stream:
        started_s, cpu = map(float, stream.read().split())
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
            try:
                output, _ = process.communicate(timeout=_POLL_INTERVAL_S)
                break
            except subprocess.TimeoutExpired:
                pass
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        tail = output.decode("utf-8", "replace").strip()[-_MAX_ERROR_LENGTH:]
        _raise_stage_in_error(
            f"{url} cannot be copied to the node: {tail or 'ROOT gave no reason'}"
        )


def _fetch_http_file(
    env: Mapping[str, str], file: InputFile, target: str, signals: StopSignals
) -> None:
    url = file.url
    context, token = None, NO_TOKEN
    if urlsplit(url).scheme == "https":
        context = make_tls_context(env)
        if env.get(TOKEN_FILE_VARIABLE):
            with open(env[TOKEN_FILE_VARIABLE], encoding="ascii") as stream:
                token = BearerToken.for_door(stream.read().strip(), url, env)
    deadline = Deadline.for_transfer()
    try:
        response = send_request("GET", url, deadline, token=token, context=context)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(str(error)) from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from error
    with response, open(target, "wb") as writer:
        if response.status != 200:
            raise OSError(f"{url}: it answers with status {response.status} instead of the file")
        while writer.tell() <= file.size:  # a longer one is another file
            signals.raise_if_stopped("stage-in")
            chunk = response.read(_CHUNK)
            if not chunk:
                break
            writer.write(chunk)


def _raise_stage_in_error(message: str) -> None:
    raise ExecutionError(Failure("stage-in", "copy", "stage-in", message, transient=True))
