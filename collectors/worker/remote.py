"""Copies files of storage doors to the node: xroot's by the ROOT of the job, the web's by Python."""

from __future__ import annotations

import os
import ssl
import subprocess
import urllib.error
import urllib.request
from typing import List, Mapping
from urllib.parse import urlsplit

from ..failures import Failure, Fault
from ..software import Setup
from .credentials import PROXY, TOKEN
from .stop import Signals

#: Seconds without a byte after which the web's servers are given up.
_QUIET_S = 120.0
#: Seconds between two looks at whether the worker is to stop.
_LOOK_S = 0.2
_CHUNK = 4 * 1024 * 1024
#: Characters of what a copy said that its failure keeps.
_SAID = 500

_SCRIPT = """import sys
import ROOT
sys.exit(not ROOT.TFile.Cp(sys.argv[1], sys.argv[2], False, 16 * 1024 * 1024))
"""


def fetch(setup: Setup, url: str, target: str, signals: Signals) -> None:
    """Copy ``url`` to the file ``target``.

    Raises:
        Fault: class ``stage-in``, kind ``unsupported`` or ``copy``; class ``evicted``.
        OSError: the node or a web server does not let us go on.
    """
    if urlsplit(url).scheme in ("http", "https"):
        _fetch_web(setup.env, url, target, signals)
        return
    if setup.provider == "none":
        message = f"{url} cannot be staged without ROOT, and root = 'none' was asked for."
        raise Fault(Failure("stage-in", "unsupported", "stage-in", message))
    script = os.path.join(os.path.dirname(target), "copy.py")
    with open(script, "w", encoding="utf-8") as stream:
        stream.write(_SCRIPT)
    _run([*setup.command("python", script), url, target], setup.env, url, signals)
    os.unlink(script)


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
