"""Copies files of storage doors to the node: xroot's by the ROOT of the job, the web's by Python."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from typing import List, Mapping
from urllib.parse import urlsplit

from ..failures import NOT_SUPPORTED, Failure, Fault
from ..software import Setup
from .credentials import PROXY, TOKEN
from .inputs import Spent
from .stop import Signals

#: Seconds without a byte after which the web's servers are given up.
_QUIET_S = 120.0
#: Seconds between two looks at whether the worker is to stop.
_LOOK_S = 0.2
_CHUNK = 4 * 1024 * 1024
#: Characters of what a copy said that its failure keeps.
_SAID = 500

#: Copies once all is loaded that copies, and says when that was and what it cost.  The first call, in
#: vain, makes the JIT emit the function.  ROOT's teardown is no copying either.
_SCRIPT = """import os, sys, time
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


def fetch(setup: Setup, url: str, target: str, signals: Signals) -> Spent:
    """Copy ``url`` to the file ``target``.

    Returns:
        what loading the ROOT took that copies.

    Raises:
        Fault: class ``stage-in``, kind ``not-supported`` or ``copy``; class ``evicted``.
        OSError: the node or a web server does not let us go on.
    """
    if urlsplit(url).scheme in ("http", "https"):
        try:
            _fetch_web(setup.env, url, target, signals)
        except http.client.HTTPException as error:
            reason = f"{type(error).__name__}: {error}"
            _fail(f"{url} cannot be copied to the node: the server's answer is broken ({reason})")
        return Spent()
    if setup.provider == "none":
        message = f"{url} cannot be staged without ROOT, and root = 'none' was asked for."
        raise Fault(Failure("stage-in", NOT_SUPPORTED, "stage-in", message))
    script, loaded = (os.path.join(os.path.dirname(target), name) for name in ("copy.py", "loaded"))
    with open(script, "w", encoding="utf-8") as stream:
        stream.write(_SCRIPT)
    start = time.monotonic()
    _run([*setup.command("python", script), url, target, loaded], setup.env, url, signals)
    with open(loaded, encoding="utf-8") as stream:
        at, cpu = map(float, stream.read().split())
    os.unlink(script)
    os.unlink(loaded)
    return Spent(at - start, cpu)


def _run(command: List[str], env: Mapping[str, str], url: str, signals: Signals) -> None:
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    said = b""
    try:
        while True:
            signals.check("stage-in")
            try:
                said, _ = process.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                pass
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        tail = said.decode("utf-8", "replace").strip()[-_SAID:]
        _fail(f"{url} cannot be copied to the node: {tail or 'ROOT does not say why'}")


def _fetch_web(env: Mapping[str, str], url: str, target: str, signals: Signals) -> None:
    request = urllib.request.Request(url)
    context = None
    if urlsplit(url).scheme == "https":
        context = ssl.create_default_context(capath=env.get("X509_CERT_DIR"))
        if env.get(PROXY):
            context.load_cert_chain(env[PROXY])
        if env.get(TOKEN):
            with open(env[TOKEN], encoding="ascii") as stream:
                # Not sent on to whom the server redirects: that would be anybody.
                bearer = f"Bearer {stream.read().strip()}"
                request.add_unredirected_header("Authorization", bearer)
    try:
        answer = urllib.request.urlopen(request, timeout=_QUIET_S, context=context)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(str(error)) from None
    with answer, open(target, "wb") as writer:
        while True:
            signals.check("stage-in")
            chunk = answer.read(_CHUNK)
            if not chunk:
                return
            writer.write(chunk)


def _fail(message: str) -> None:
    raise Fault(Failure("stage-in", "copy", "stage-in", message, transient=True))
