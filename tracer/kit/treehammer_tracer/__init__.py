"""Measurement of any command: its processes, and its reads by a preloaded recorder.

>>> import treehammer_tracer
>>> treehammer_tracer.run("payload")  # doctest: +SKIP

Standard library, Python 3.9 and later.
"""

from __future__ import annotations

import importlib
import os
import sys
import types

__all__ = ["run"]

if __package__ == "treehammer_tracer":
    # On a node the kit's folder is on the path: import both kits as parts of one package.
    for _name in ("treehammer_node", "treehammer_node.collectors", "treehammer_node.tracer"):
        _package = types.ModuleType(_name)
        _package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
        sys.modules[_name] = _package
    command_payload = importlib.import_module(
        "treehammer_node.tracer.kit.treehammer_tracer.command_payload"
    )
else:
    from . import command_payload

run = command_payload.run
