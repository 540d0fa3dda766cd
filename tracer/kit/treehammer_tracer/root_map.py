"""Baskets of TTrees and pages of RNTuples, listed by ROOT or, for local files, by uproot.

A program of its own for the Python of a recorded command, whose ROOT has the plug-ins for its doors: it
imports nothing of Treehammer. It reads a path or URL from each line of its input, and answers with a line
of JSON: a list of ``[start, end, header, unzipped, tree, branch]``, or the text of an error. Without ROOT
and uproot it ends with exit code 3.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from array import array
from collections import Counter
from functools import partial
from typing import Any, Callable, Iterator, List, Sequence, Tuple

Row = Tuple[int, int, int, int, str, str]

#: Exit code of this program where Python has neither ROOT nor uproot.
NO_LIBRARY = 3
#: Start of a record: its bytes, version, bytes of content, date, bytes of its header, and cycle.
RECORD_HEAD = struct.Struct(">iHIIHH")
#: Headers in one vector read: servers of XRootD take 1024.
_MAX_HEADERS = 1024
#: Bytes of the checksum behind a page.
_CHECKSUM = 8
#: Lists the pages of an RNTuple; its descriptor has other names in earlier releases.
_PAGES = """
#include <ROOT/RNTupleDescriptor.hxx>
#include <ROOT/RNTupleReader.hxx>
#include <map>
#include <string>
#include <vector>
namespace treehammer {
struct Page { unsigned long long start, end, unzipped; std::string field; };
std::vector<Page> ListPages(const std::string &name, const std::string &file)
{
   auto reader = ROOT::RNTupleReader::Open(name, file);
   const auto &descriptor = reader->GetDescriptor();
   // A projected field, which has the name that users know, stores nothing of its own.
   std::map<ROOT::DescriptorId_t, ROOT::DescriptorId_t> projected;
   for (auto id = descriptor.GetNPhysicalColumns(); id < descriptor.GetNLogicalColumns(); id++) {
      const auto &alias = descriptor.GetColumnDescriptor(id);
      projected[alias.GetPhysicalId()] = alias.GetFieldId();
   }
   std::vector<Page> pages;
   for (const auto &cluster : descriptor.GetClusterIterable()) {
      for (const auto &range : cluster.GetColumnRangeIterable()) {
         if (range.IsSuppressed())
            continue;
         const auto &column = descriptor.GetColumnDescriptor(range.GetPhysicalColumnId());
         auto alias = projected.find(column.GetPhysicalId());
         auto field = alias == projected.end() ? column.GetFieldId() : alias->second;
         while (descriptor.GetFieldDescriptor(field).GetParentId() != descriptor.GetFieldZeroId())
            field = descriptor.GetFieldDescriptor(field).GetParentId();
         for (const auto &page : cluster.GetPageRange(range.GetPhysicalColumnId()).GetPageInfos()) {
            const auto &locator = page.GetLocator();
            if (locator.GetType() != ROOT::RNTupleLocator::kTypeFile)
               continue; // a page of zeros, which is not stored
            auto start = locator.GetPosition<std::uint64_t>();
            auto end = start + locator.GetNBytesOnStorage() + (page.HasChecksum() ? 8 : 0);
            auto unzipped = static_cast<unsigned long long>(page.GetNElements()) * column.GetBitsOnStorage() / 8;
            pages.push_back({start, end, unzipped, descriptor.GetFieldDescriptor(field).GetFieldName()});
         }
      }
   }
   return pages;
}
}
"""


def name_branches(branches: Sequence[Tuple[str, str, Any]]) -> Iterator[Tuple[str, Any]]:
    """Name each branch, given with path and name: by its path if others have its name."""
    counts = Counter(name for _, name, _ in branches)
    for path, name, branch in branches:
        yield path if counts[name] > 1 else name, branch


def list_baskets(file: Any, tree: Any, path: str) -> Iterator[Row]:
    """List the baskets of a TTree by its path; their sizes are in the headers of their records."""
    starts: List[Tuple[int, str]] = []
    branches = [(b.GetName(), b.GetName(), b) for b in tree.GetListOfBranches()]
    for parent, _, branch in branches:  # which grows
        below = branch.GetListOfBranches()
        branches += [(f"{parent}/{b.GetName()}", b.GetName(), b) for b in below]
    for name, branch in name_branches(branches):
        seeks = (branch.GetBasketSeek(number) for number in range(branch.GetWriteBasket() + 1))
        starts += [(seek, name) for seek in seeks if seek > 0]
    starts.sort()
    for first in range(0, len(starts), _MAX_HEADERS):
        part = starts[first : first + _MAX_HEADERS]
        positions = array("q", [start for start, _ in part])
        lengths = array("i", [RECORD_HEAD.size] * len(part))
        content = ctypes.create_string_buffer(RECORD_HEAD.size * len(part))
        if file.ReadBuffers(content, positions, lengths, len(part)):
            raise OSError(f"the headers of {len(part)} baskets cannot be read")
        for (start, name), header in zip(part, RECORD_HEAD.iter_unpack(content.raw)):  # noqa: B905
            size, _, unzipped, _, header_size, _ = header
            yield start, start + size, header_size, unzipped, path, name


def list_pages(root: Any, path: str, name: str) -> Iterator[Row]:
    """List the pages of an RNTuple."""
    if not hasattr(root, "treehammer") or not hasattr(root.treehammer, "ListPages"):
        root.gSystem.Load("libROOTNTuple")  # which wheels load late
        root.gInterpreter.Declare(_PAGES)
    for page in root.treehammer.ListPages(name, path):
        yield page.start, page.end, 0, page.unzipped, name, str(page.field)


def list_with_root(root: Any, path: str) -> Iterator[Row]:
    """List the rows of all TTrees and RNTuples of a file, in its folders, too.

    Raises:
        OSError: the file cannot be opened or read.
    """
    file = root.TFile.Open(path)
    folders = [("", file)]
    while folders:
        prefix, folder = folders.pop()
        newest = {key.GetName(): key for key in reversed(list(folder.GetListOfKeys()))}
        for name, key in newest.items():
            kind = root.TClass.GetClass(key.GetClassName())
            if key.GetClassName() == "ROOT::RNTuple":
                yield from list_pages(root, path, prefix + name)
            elif kind and kind.InheritsFrom("TTree") and not kind.InheritsFrom("TChain"):
                yield from list_baskets(file, key.ReadObj(), prefix + name)
            elif kind and kind.InheritsFrom("TDirectory"):
                folders.append((f"{prefix}{name}/", key.ReadObj()))


def list_with_uproot(uproot: Any, path: str) -> Iterator[Row]:
    """List the rows of all TTrees and RNTuples of a local file.

    Raises:
        ValueError: it is behind a door.
    """
    if "://" in path:
        raise ValueError("behind a door they are listed by ROOT, which the command's Python lacks")
    with uproot.open(path) as file:
        for key, kind in file.classnames().items():
            if kind == "ROOT::RNTuple":
                yield from _list_uproot_pages(key.partition(";")[0], file[key])
            elif kind in ("TTree", "TNtuple", "TNtupleD"):
                yield from _list_uproot_baskets(key.partition(";")[0], file[key])


def _list_uproot_baskets(path: str, tree: Any) -> Iterator[Row]:
    branches = [(place, branch.name, branch) for place, branch in tree.items(full_paths=True)]
    for name, branch in name_branches(branches):
        for number in range(branch.num_baskets - len(branch.embedded_baskets)):
            key = branch.basket_key(number)
            start, end = key.fSeekKey, key.fSeekKey + key.fNbytes
            yield start, end, key.fKeylen, key.fObjlen, path, name


def _list_uproot_pages(name: str, ntuple: Any) -> Iterator[Row]:
    fields, columns = ntuple.field_records, ntuple.column_records
    # A projected field, which has the name that users know, stores nothing of its own.
    projected = {alias.physical_id: alias.field_id for alias in ntuple.alias_column_records}
    tops = []
    for number, column in enumerate(columns):
        field = projected.get(number, column.field_id)
        while fields[field].parent_field_id != field:
            field = fields[field].parent_field_id
        tops.append(fields[field].field_name)
    for cluster in ntuple.page_link_list:
        for number, column_pages in enumerate(cluster):
            for page in column_pages.pages:
                start = page.locator.offset
                end = start + page.locator.num_bytes + (_CHECKSUM if page.has_checksum else 0)
                unzipped = abs(page.num_elements) * columns[number].nbits // 8
                yield start, end, 0, unzipped, name, tops[number]


def make_lister() -> Callable[[str], Iterator[Row]]:
    """Make the function that lists a file; ROOT has precedence.

    Raises:
        ImportError: this Python has neither ROOT nor uproot.
    """
    try:
        import ROOT
    except ImportError:
        import uproot

        return partial(list_with_uproot, uproot)
    ROOT.gErrorIgnoreLevel = ROOT.kFatal
    return partial(list_with_root, ROOT)


def main() -> None:
    """Answer until the input ends; what ROOT and its logon scripts print is no answer."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        list_rows = make_lister()
    except ImportError:
        sys.exit(NO_LIBRARY)
    for line in sys.stdin:
        answer: Any
        try:
            answer = list(list_rows(line.rstrip("\n")))
        except Exception as error:  # of any kind: files of later releases, doors, C++
            reason = " ".join(str(error).split()) or type(error).__name__
            answer = f"they cannot be listed: {reason}"
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
