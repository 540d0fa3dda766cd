"""Answers one request, under the Python of a ROOT environment.

The request is one JSON document on standard input.  Standard output carries one JSON document
a line: ``{"done": n}`` while it goes on, then ``{"result": ...}`` or ``{"error": {"where",
"message"}}``.  What ROOT itself prints goes to standard error.  Python 3.9 and later.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import ROOT

from .common import RequestError, send
from .reading import compare, hashes, measure
from .writing import make, merge, order, rewrite, twin

Action = Callable[[dict[str, Any], TextIO], dict[str, Any]]
ACTIONS: dict[str, Action] = {
    "make": make,
    "merge": merge,
    "rewrite": rewrite,
    "order": order,
    "twin": twin,
    "hashes": hashes,
    "compare": compare,
    "measure": measure,
}


def main() -> None:
    """Answer one request."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    ROOT.gROOT.SetBatch(True)
    try:
        answer = {"result": ACTIONS[sys.argv[1]](request, channel)}
    except RequestError as error:
        answer = {"error": {"where": error.where, "message": str(error)}}
    send(channel, answer)
