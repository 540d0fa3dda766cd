"""Load generator: operations on a schedule that no slow server can delay, or in closed loops.

>>> import treehammer_load
>>> treehammer_load.run(treehammer_load.open_files)  # doctest: +SKIP

One process carries all clients of a job. Storage is reached through the XRootD Python bindings,
aiohttp or the operating system. Standard library otherwise, Python 3.9 and later.
"""

from __future__ import annotations

import importlib
import os
import sys
import types

__all__ = [
    "create_files",
    "delete_files",
    "load_recording",
    "make_own_folders",
    "make_storm_client",
    "open_files",
    "pretend_transfers",
    "read_files",
    "read_pattern",
    "replay_recording",
    "run",
    "run_cached_reads",
    "run_log_parser",
    "run_server_watch",
    "storm_files",
    "stream_files",
    "write_streams",
]

if __package__ == "treehammer_load":
    # On a node the kit's folder is on the path, and the record, which the generator shares with
    # the worker, lies beside it: import both as parts of one package.
    for _name in ("treehammer_node", "treehammer_node.collectors", "treehammer_node.load"):
        _package = types.ModuleType(_name)
        _package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(__file__)))]
        sys.modules[_name] = _package
    cached_reads = importlib.import_module("treehammer_node.load.kit.treehammer_load.cached_reads")
    payload = importlib.import_module("treehammer_node.load.kit.treehammer_load.payload")
    replay = importlib.import_module("treehammer_node.load.kit.treehammer_load.replay")
    storm = importlib.import_module("treehammer_node.load.kit.treehammer_load.storm")
    workloads = importlib.import_module("treehammer_node.load.kit.treehammer_load.workloads")
    server_payloads = importlib.import_module(
        "treehammer_node.load.kit.treehammer_load.server.server_payloads"
    )
else:
    from . import cached_reads, payload, replay, storm, workloads
    from .server import server_payloads

run = payload.run
open_files, read_files = workloads.open_files, workloads.read_files
read_pattern = workloads.read_pattern
replay_recording, load_recording = replay.replay_recording, replay.load_recording
stream_files, write_streams = workloads.stream_files, workloads.write_streams
storm_files, make_storm_client = storm.storm_files, storm.make_storm_client
pretend_transfers = workloads.pretend_transfers
make_own_folders = workloads.make_own_folders
delete_files, create_files = workloads.delete_files, workloads.create_files


def run_cached_reads() -> None:
    """Read files through a cache or directly, count at both ends, write the result, and exit."""
    payload.run_payload(cached_reads.read_through_cache)


def run_log_parser() -> None:
    """Count the calls in a server's log during a load, write the result, and exit."""
    payload.run_payload(server_payloads.follow_log, needs_storage=False)


def run_server_watch() -> None:
    """Watch a server's machine during a load, write the result, and exit."""
    payload.run_payload(server_payloads.watch_server, needs_storage=False)
