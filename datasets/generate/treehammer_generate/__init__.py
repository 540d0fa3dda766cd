"""Writing, comparing and measuring files in a process with ROOT: the handler of one request.

The request is one JSON document on standard input.  Standard output carries one JSON document
per line: ``{"done": n}`` as progress, then ``{"result": ...}`` or ``{"error": {"where",
"message"}}``.  Output of ROOT goes to standard error.  Requires Python 3.9 or later.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

import ROOT

from .branch_probe import probe_branches
from .file_inspection import (
    RequestError,
    compare_objects,
    hash_values,
    load_kit_objects,
    measure_files,
    send_message,
)
from .file_writing import (
    write_generated,
    write_merged,
    write_reordered,
    write_rewritten,
    write_rntuple,
)

Action = Callable[[dict[str, Any], TextIO], dict[str, Any]]
ACTIONS: dict[str, Action] = {
    "make": write_generated,
    "merge": write_merged,
    "rewrite": write_rewritten,
    "order": write_reordered,
    "twin": write_rntuple,
    "hashes": hash_values,
    "compare": compare_objects,
    "measure": measure_files,
    "probe": probe_branches,
}


def answer_request(channel: TextIO) -> None:
    """Answer one request on the channel."""
    request = json.load(sys.stdin)
    ROOT.gROOT.SetBatch(True)
    load_kit_objects()
    try:
        answer = {"result": ACTIONS[sys.argv[1]](request, channel)}
    except RequestError as error:
        answer = {"error": {"where": error.where, "message": str(error)}}
    send_message(channel, answer)
