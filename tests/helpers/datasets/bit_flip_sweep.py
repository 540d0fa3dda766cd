"""Flips single bits of a ROOT file and tells what the kit makes of each; runs in a release's Python.

``damage_sweep.py make FILE`` writes a file with a branch for each way of storing a basket.
``damage_sweep.py sweep FILE SEED EACH ADLER32`` flips EACH bits in every region of it and prints a
JSON list; without the adler32 of the whole file ('') the kit sees what ROOT alone notices.
Each flip is read in a fork of a process that is warm, so that hundreds take a minute.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import treehammer_kit
from treehammer_kit import root_engine
from treehammer_kit.payload_task import PayloadError, PayloadTask
from treehammer_kit.read_passes import ReadPasses

RegionSpans = dict[str, list[tuple[int, int]]]

#: Marks at the beginning of a compressed basket; uncompressed ones have none.
CODECS = {b"ZL": "zlib", b"L4": "lz4", b"ZS": "zstd", b"XZ": "lzma"}
HEADER_BYTES = 9  # of a compressed block
TIME_LIMIT_S = 60

MAKE_FILE_SOURCE = """
#include <TBranch.h>
#include <TFile.h>
#include <TTree.h>
void make(const char *path) {
   TFile file(path, "RECREATE");
   auto *tree = new TTree("events", "events");
   tree->SetAutoFlush(100);
   std::map<const char *, int> settings{{"zlib", 101}, {"lz4", 404}, {"zstd", 505}, {"lzma", 207}, {"stored", 0}};
   struct Values { int n; int plain[8]; std::vector<float> floats; std::string text; };
   std::map<const char *, Values> values;
   for (auto &[name, compression] : settings) {
      auto &mine = values[name];
      tree->Branch(Form("%s_n", name), &mine.n);
      tree->Branch(Form("%s_plain", name), mine.plain, Form("plain[%s_n]/I", name));
      tree->Branch(Form("%s_floats", name), &mine.floats);
      tree->Branch(Form("%s_text", name), &mine.text);
      for (auto *part : {"n", "plain", "floats", "text"})
         tree->GetBranch(Form("%s_%s", name, part))->SetCompressionSettings(compression);
   }
   unsigned long long state = 1;
   auto next = [&] { return (state = state * 6364136223846793005ull + 1442695040888963407ull) >> 33; };
   for (int entry = 0; entry < 500; ++entry) {
      for (auto &[name, mine] : values) {
         mine.n = next() % 9;
         for (auto &x : mine.plain) x = next() % 100;
         mine.floats.assign(next() % 5, mine.n);
         mine.text = std::string(mine.n, 'x');
      }
      tree->Fill();
   }
   file.Write();
}
"""


def list_records(content: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield offset, length, key length and class of every record of a ROOT file."""
    at, end = struct.unpack(">ii", content[8:16])
    while at < end:
        length, version, _, _, key, _ = struct.unpack(">ihiIhh", content[at : at + 18])
        name = at + (26 if version < 1000 else 34)
        yield at, length, key, content[name + 1 : name + 1 + content[name]].decode("latin1")
        at += length


def find_regions(content: bytes) -> RegionSpans:
    """Find the spans of each kind of region in a ROOT file."""
    found: RegionSpans = {"file header": [(0, 64)]}
    for at, length, key, kind in list_records(content):
        body, end = at + key, at + length
        if kind == "TBasket":
            codec = CODECS.get(content[body : body + 2], "")
            found.setdefault("basket key", []).append((at, body))
            if codec:
                found.setdefault("block header", []).append((body, body + HEADER_BYTES))
                body += HEADER_BYTES
            found.setdefault(f"{codec or 'stored'} basket", []).append((body, end))
        else:
            names = {"TTree": "tree", "TList": "streamer info"}
            found.setdefault(names.get(kind, "directory"), []).append((at, end))
    return found


def file_offset(spans: list[tuple[int, int]], position: int) -> int:
    """Convert a position within a region to an offset in the file."""
    for start, end in spans:
        if position < end - start:
            return start + position
        position -= end - start
    raise IndexError(position)


def build_task(path: str, adler32: str, kind: str) -> PayloadTask:
    """Build a task of two passes over everything, or of the checksum."""
    return PayloadTask(kind, "events", [path], [adler32], 2, 1, 1.0, 1_000_000, 1.0, {}, ".")


def read_outcome(root: Any, path: str, adler32: str) -> dict[str, Any]:
    """Run a timed and a checksum execution; return their failures, '' for success."""
    outcome: dict[str, Any] = {"timed": "", "checksum": "", "message": ""}
    try:
        passes = ReadPasses(root, build_task(path, adler32, "timed"))
        results = [passes.run_pass() for _ in range(2)]
        outcome["amount"] = [(item.events, item.unzipped_bytes) for item in results]
    except PayloadError as error:
        outcome.update(timed=_name_failure(error), message=str(error))
    try:
        sums = treehammer_kit.value_checksum.compute_checksum(
            root, build_task(path, adler32, "checksum")
        )
        outcome["sum"] = sums["value_checksum"]
    except PayloadError as error:
        outcome["checksum"] = _name_failure(error)
    except Exception:  # like the kit itself
        outcome["checksum"] = "payload/exception"
    return outcome


def _name_failure(error: PayloadError) -> str:
    return f"{error.document['failure_class']}/{error.document['kind']}"


def outcome_in_fork(root: Any, path: str, adler32: str) -> dict[str, Any]:
    """Read in a child process, which may crash or hang."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(TIME_LIMIT_S)
        for printed in (1, 2):  # ROOT's messages would mix with the results
            os.dup2(os.open(os.devnull, os.O_WRONLY), printed)
        code = 1
        try:
            os.write(writer, json.dumps(read_outcome(root, path, adler32)).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    ended = f"ended by {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"left with {status}"
    found: dict[str, Any] = json.loads(text) if text else {"timed": ended, "checksum": ended}
    return found


def sweep_bit_flips(path: str, seed: int, each: int, adler32: str) -> list[dict[str, Any]]:
    """Flip random bits in every region; return the outcomes, the intact file's first."""
    with open(path, "rb") as stream:
        content = stream.read()
    root, _ = root_engine.load_root()
    root_engine.compile_header(root, "kit.hpp")
    root_engine.compile_header(root, "checksum.hpp")
    # Read once before forking, so that everything is compiled.
    found = [{"region": "none", "offset": 0, **read_outcome(root, path, adler32)}]
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        damaged = os.path.join(folder, "damaged.root")
        for region, spans in sorted(find_regions(content).items()):
            size = sum(end - start for start, end in spans)
            for _ in range(each):
                offset = file_offset(spans, chosen.randrange(size))
                flipped = bytearray(content)
                flipped[offset] ^= 1 << chosen.randrange(8)
                with open(damaged, "wb") as target:
                    target.write(flipped)
                result = outcome_in_fork(root, damaged, adler32)
                found.append({"region": region, "offset": offset, **result})
    return found


def main() -> None:
    """Run the command line."""
    if sys.argv[1] == "make":
        root, _ = root_engine.load_root()
        root.gInterpreter.Declare(MAKE_FILE_SOURCE)
        root.make(sys.argv[2])
    else:
        path, seed, each, adler32 = sys.argv[2:]
        print(json.dumps(sweep_bit_flips(path, int(seed), int(each), adler32)))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
