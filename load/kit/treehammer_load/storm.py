"""Storm: many clients open many small files at once, as the workers of Dask and coffea do.

Each client opens a file, reads it and goes on to the next one; a file that failed is opened again.
ROOT or uproot reads the trees, in a thread for each client, where the software has them; otherwise the
load generator reads the bytes.  The log of XRootD's client, which works inside all three, contains the
waits and redirects that servers asked for.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections import Counter
from importlib.util import find_spec
from typing import Callable, Dict, Iterator, Set
from urllib.parse import urlsplit

from ....collectors.kit.treehammer_kit.payload_task import PayloadError, make_plain_url
from ....collectors.kit.treehammer_kit.pyroot import declare
from ....collectors.kit.treehammer_kit.root_engine import compile_header
from ....collectors.record.operation_steps import FILES_UNREAD, READ_FILE
from .clients import make_client
from .clients.xrootd_client import add_user, classify_exit, limit_client
from .load_driver import ClosedLoop
from .load_task import TIMEOUT_S, LoadTask
from .operation import (
    Flight,
    Operation,
    StorageClient,
    ThreadedClient,
    WrappingClient,
    make_load_error,
)

#: Opens of one file after the first one.
MAX_RETRIES = 100
#: Files of one client.
MAX_FILES = 1_000_000
#: Class of operations that end in a wait that the server asked for, longer than their time limit.
STALLED = "stalled"
#: Figures by the classes that they count.
_FAILURE_FIGURES = {
    "timeout": "timeouts",
    STALLED: "stalls",
    "redirect-limit": "redirect_limits",
    "refused": "refusals",
}
#: Failures whose messages are logged.
_MAX_LOGGED = 5


def storm_files(task: LoadTask, _span: object) -> ClosedLoop:
    """Read ``files`` small files by each of ``clients``; each up to ``retries`` times again."""
    return _Storm(task).make_loop()


class _Storm:
    """Sequences of the clients, which depend on the failures of their operations."""

    def __init__(self, task: LoadTask) -> None:
        if not task.files:
            raise make_load_error("a storm reads the files of a dataset: name one")
        self._task = task
        # Each client opens files of its own, as far as the dataset goes.
        self._clients = task.read_clients()
        self._files = task.read_count("files", 10, MAX_FILES)
        self._retries = int(task.read_number("retries", 0, (0, MAX_RETRIES), zero=True))
        self._failures: Dict[int, str] = {}
        self._counts: Counter[str] = Counter()
        self._lost_s = 0.0
        self._lock = threading.Lock()

    def make_loop(self) -> ClosedLoop:
        sequences = [self._make_sequence(client) for client in range(self._clients)]
        return ClosedLoop(
            sequences, moves_files=True, observe=self._observe, summarize=self._summarize
        )

    def _make_sequence(self, client: int) -> Iterator[Operation]:
        files = self._task.files
        first = (self._task.index * self._clients + client) * self._files
        for number in range(first, first + self._files):
            for _ in range(self._retries + 1):
                yield Operation(0.0, READ_FILE, client, files[number % len(files)])
                # The driver asks for the next operation when this one has ended.
                if not self._failures.pop(client, ""):
                    break
                self._counts["reopens"] += 1
            else:
                self._counts["reopens"] -= 1
                self._counts["files_failed"] += 1

    def _observe(self, flight: Flight, failure: str, now_s: float) -> None:
        if not failure:
            with self._lock:
                self._counts["files_read"] += 1
        else:
            sent_s = now_s if flight.sent_s is None else flight.sent_s
            with self._lock:
                self._failures[flight.operation.client] = failure
                self._counts[_FAILURE_FIGURES.get(failure, "other_failures")] += 1
                self._lost_s += now_s - sent_s

    def _summarize(self) -> Dict[str, float]:
        names = ("reopens", "files_failed", *_FAILURE_FIGURES.values(), "other_failures")
        ended = self._counts["files_read"] + self._counts["files_failed"]
        return {
            **{name: float(self._counts[name]) for name in names},
            FILES_UNREAD: float(self._clients * self._files - ended),
            "lost_s": self._lost_s,
        }


def make_storm_client(task: LoadTask, clients: int) -> StormClient:
    """Make the client of a storm: ROOT or uproot if the software has one, else the generator.

    Raises:
        PayloadError: the software cannot read the door.
    """
    timeout_s = task.read_number("timeout_s", TIMEOUT_S, (0, 3600))
    log = ClientLog(os.path.join(os.getcwd(), "xrootd-client.log"))
    log.start()
    limit_client(timeout_s)
    inner: StorageClient
    if find_spec("ROOT"):
        read = _make_root_reader(task.url)
        inner = TreeClient(clients, timeout_s, read, len(os.sched_getaffinity(0)))
    elif find_spec("uproot"):
        inner = TreeClient(clients, timeout_s, _make_uproot_reader(task.url))
    else:
        inner = make_client(task.url, clients, timeout_s)
    return StormClient(inner, log)


class StormClient(WrappingClient):
    """Tells stalls from other timeouts, by the log of XRootD's client.

    Args:
        inner: performs the operations.
        log: of XRootD's client.
    """

    def __init__(self, inner: StorageClient, log: ClientLog) -> None:
        super().__init__(inner)
        self._log = log

    def start(self, flight: Flight) -> None:
        """Send an operation."""

        def answered(_inner: Flight, _now_s: float, server: str, failure: str) -> None:
            if failure == "timeout" and self._log.pop_stall(flight.operation.client):
                failure = STALLED
            flight.end(server, failure)

        flight.send()
        self.inner.start(Flight(flight.operation, time.monotonic, answered))

    def summarize(self) -> Dict[str, float]:
        """Return the waits and redirects that servers asked for."""
        return self._log.summarize()

    def close(self) -> None:
        """Close the inner client and remove the log."""
        self.inner.close()
        self._log.remove()


class ClientLog:
    """Log of the XRootD client of this process: waits, stalls and redirects.

    The line of a wait is followed by another one if it exceeds the request's time limit.

    Args:
        path: the file.
    """

    _LINE = re.compile(
        r"\] \[(?:th(?P<client>\d+)@)?[^\]]*\] "
        r"(?:Got kXR_wait response of (?P<wait_s>\d+) |(?P<stall>Wait time is too long)|"
        r"(?P<redirect>Got kXR_redirect ))"
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._position = 0
        self._rest = ""
        self._lock = threading.Lock()
        self._stalled: Set[str] = set()
        #: Client -> the last wait that its server asked for.
        self._waits_s: Dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def start(self) -> None:
        """Let XRootD's client write the log; before its library is loaded."""
        os.environ.update(XRD_LOGFILE=self._path, XRD_LOGLEVEL="Dump", XRD_LOGMASK="XRootDMsg")

    def pop_stall(self, client: int) -> bool:
        """Return whether a client's operation has ended in a wait since the last call."""
        with self._lock:
            self._read()
            if str(client) not in self._stalled:
                return False
            self._stalled.remove(str(client))
            return True

    def summarize(self) -> Dict[str, float]:
        """Return the counts of the whole log."""
        with self._lock:
            self._read()
            return {name: float(self._counts[name]) for name in ("waits", "waited_s", "redirects")}

    def remove(self) -> None:
        """Remove the file."""
        if os.path.exists(self._path):
            os.unlink(self._path)

    def _read(self) -> None:
        """Read the lines that were added since the last call."""
        if not os.path.exists(self._path):
            return
        with open(self._path, encoding="utf-8", errors="replace", newline="\n") as stream:
            stream.seek(self._position)
            text = self._rest + stream.read()
            self._position = stream.tell()
        *lines, self._rest = text.split("\n")
        for line in lines:
            match = self._LINE.search(line)
            if match is None:
                continue
            client = match["client"] or ""
            if match["wait_s"]:
                self._waits_s[client] = int(match["wait_s"])
                self._counts["waits"] += 1
                self._counts["waited_s"] += self._waits_s[client]
            elif match["redirect"]:
                self._counts["redirects"] += 1
            else:  # the client fails at once instead of waiting
                self._counts["waited_s"] -= self._waits_s.pop(client, 0)
                self._stalled.add(client)


#: Reads all trees of a file; returns why it failed, '' after success.
ReadTrees = Callable[[str], str]


class TreeClient(ThreadedClient):
    """Reads whole ROOT files, in a thread for each client.

    Args:
        clients: number of clients.
        timeout_s: limit that the library knows; unused here.
        read: reads one file.
        cores: cores that it may occupy.
    """

    def __init__(self, clients: int, timeout_s: float, read: ReadTrees, cores: int = 1) -> None:
        super().__init__(clients, timeout_s)
        self.cores = cores
        self._read = read
        self._logged = 0

    def _perform(self, flight: Flight) -> None:
        operation = flight.operation
        url = operation.file.url
        server = urlsplit(url).netloc.rpartition("@")[2]
        if url.startswith(("root:", "roots:")):
            url = add_user(url, operation.client)
        flight.send()
        message = self._read(make_plain_url(url))
        failure = classify_exit(message) if message else ""
        self._logged += bool(failure)
        if failure and self._logged <= _MAX_LOGGED:
            print(f"treehammer_load: {operation.file.url}: {message}", flush=True)
        flight.end(server, failure)


def _make_uproot_reader(url: str) -> ReadTrees:
    import fsspec  # type: ignore[import-untyped,unused-ignore]
    import uproot  # type: ignore[import-not-found,unused-ignore]

    scheme, separator, _ = url.partition("://")
    try:
        fsspec.get_filesystem_class(scheme if separator else "file")
    except (ImportError, ValueError) as error:
        message = f"{scheme}:// needs a package beside uproot: {error}"
        raise PayloadError("software-setup", "missing", "setup", message) from error

    def read(url: str) -> str:
        try:
            with uproot.open(url) as file:
                for name in file.keys(filter_classname="TTree", cycle=False):
                    file[name].arrays(library="np")
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return read


#: ROOT reports errors to one function for all threads.
_ROOT_CODE = """
#include <TError.h>
#include <TFile.h>
#include <TKey.h>
#include <TTree.h>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace treehammer_storm {
std::mutex mutex;
std::map<std::thread::id, std::string> messages;

void handle(int level, Bool_t, const char *where, const char *message) {
  if (level < kError) return;
  std::lock_guard<std::mutex> lock(mutex);
  messages[std::this_thread::get_id()] += std::string(where) + ": " + message + "; ";
}

std::string take_message(const std::string &otherwise) {
  std::lock_guard<std::mutex> lock(mutex);
  std::string message = messages[std::this_thread::get_id()];
  messages.erase(std::this_thread::get_id());
  return message.empty() ? otherwise : message;
}

std::string read(const char *url) {
  std::unique_ptr<TFile> file(TFile::Open(url));
  if (!file || file->IsZombie()) return take_message("the file cannot be opened");
  for (auto *object : *file->GetListOfKeys()) {
    auto *key = static_cast<TKey *>(object);
    if (std::string(key->GetClassName()) != "TTree") continue;
    std::unique_ptr<TTree> tree(key->ReadObject<TTree>());
    if (!tree) return take_message("a tree cannot be read");
    treehammer::DetachFriends(*tree);
    const std::string foreign = treehammer::DescribeForeignBranches(*tree);
    if (!foreign.empty()) return foreign;
    for (Long64_t entry = 0; entry < tree->GetEntries(); ++entry)
      if (tree->GetEntry(entry) < 0) return take_message("an entry cannot be read");
  }
  return take_message("");
}

void read_file(const char *url, char *message, int size) {
  take_message("");
  snprintf(message, size, "%s", read(url).c_str());
}
}
"""
#: Characters of a message.
_MAX_MESSAGE = 1_000


def _make_root_reader(url: str) -> ReadTrees:
    import ROOT  # type: ignore[import-not-found,unused-ignore]

    ROOT.gROOT.SetBatch(True)
    ROOT.EnableThreadSafety()
    compile_header(ROOT, "file_objects.hpp")
    if not declare(ROOT, _ROOT_CODE):
        raise PayloadError("software-setup", "broken", "setup", "ROOT does not compile C++ here")
    ROOT.gInterpreter.ProcessLine("SetErrorHandler(treehammer_storm::handle);")
    # The first file must not wait for the libraries of its protocol.
    handler = ROOT.gPluginMgr.FindHandler("TFile", make_plain_url(url))
    if handler:
        handler.LoadPlugin()
    # Python's own calls of C functions release the interpreter, and do not compile anything.
    address = ROOT.gInterpreter.Calc("(Longptr_t)&treehammer_storm::read_file")
    function = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int)(address)

    def read(url: str) -> str:
        message = ctypes.create_string_buffer(_MAX_MESSAGE)
        function(url.encode(), message, _MAX_MESSAGE)
        return message.value.decode(errors="replace")

    return read
