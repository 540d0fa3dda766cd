"""Steps the C++ reader through RNTuples: same phases and choices as of TTrees, counters of their own."""

from __future__ import annotations

import difflib
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .passes import Choice, Passes, check, contents_of, shared_figures
from .summary import FileRead, PassRead, counted, median_of, times_of
from .task import Trouble

#: Counter of the reader -> catalogue entry; times are in nanoseconds there.
_CATALOGUE: Mapping[str, str] = {
    "nReadV": "ntuple_vector_reads",
    "nRead": "ntuple_ranges_read",
    "szReadPayload": "ntuple_payload_bytes",
    "szReadOverhead": "ntuple_overhead_bytes",
    "szUnzip": "ntuple_unzipped_bytes",
    "nClusterLoaded": "ntuple_clusters_loaded",
    "nPageRead": "ntuple_pages_read",
    "nPageUnsealed": "ntuple_pages_unzipped",
    "timeWallRead": "ntuple_read_wall_s",
    "timeCpuRead": "ntuple_read_cpu_s",
    "timeWallUnzip": "ntuple_unzip_wall_s",
    "timeCpuUnzip": "ntuple_unzip_cpu_s",
}
_KERNEL = ("kernel_read_chars", "kernel_read_bytes", "kernel_read_calls")
_NS = 1e-9


class NTuplePasses(Passes):
    """The passes of one execution over RNTuples."""

    def _open(self, url: str) -> Any:
        reader = self._root.treehammer.NTupleReader()
        check(reader, reader.Open(url), "open", url)
        wanted = self._task.tree
        _require_ntuple(contents_of(reader), url, wanted)
        check(reader, reader.GetTree(wanted, self._task.cache_bytes > 0), "get_tree", url)
        return reader

    def _survey(self, reader: Any) -> Any:
        return reader.Survey()

    def _zip_bytes(self, reader: Any, positions: List[int]) -> int:
        return int(reader.ZipBytes(positions))

    def _prepare(self, reader: Any, choice: Choice) -> bool:
        return bool(reader.Prepare(choice.positions))

    def _figures(self, reader: Any) -> FileRead:
        counters: Dict[str, float] = {name: getattr(reader, name) for name in _KERNEL}
        for item in reader.counters:
            amount, name = int(item.second), _CATALOGUE[str(item.first)]
            counters[name] = amount * _NS if name.endswith("_s") and amount >= 0 else amount
        return FileRead(
            **shared_figures(reader), cached=bool(reader.cluster_cache), counters=counters
        )


def _require_ntuple(contents: Mapping[str, str], url: str, wanted: str) -> None:
    if contents.get(wanted) == "ROOT::RNTuple":
        return
    if wanted in contents:
        said = f"{wanted!r} is of class {contents[wanted]}, not an RNTuple of the released format"
        raise Trouble("open", "tree", "get_tree", f"{url}: {said}")
    found = [name for name, kind in contents.items() if kind == "ROOT::RNTuple"]
    near = difflib.get_close_matches(wanted, found, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(found) or "none"
    raise Trouble(
        "open", "tree", "get_tree", f"{url} holds no RNTuple {wanted!r}{hint} (RNTuples: {listed})"
    )


def values_of(passes: Sequence[PassRead]) -> Dict[str, Any]:
    """Catalogue values of RNTuples: medians over the counted passes, and every pass in order."""
    values = {**times_of(passes), **_counters(counted(passes))}
    return {name: value for name, value in values.items() if value is not None}


def _counters(kept: Sequence[PassRead]) -> Dict[str, Any]:
    names = (*_CATALOGUE.values(), *_KERNEL)
    values: Dict[str, Any] = {
        name: median_of([item.counter(name) for item in kept], whole=not name.endswith("_s"))
        for name in names
    }
    payload, overhead = values["ntuple_payload_bytes"], values["ntuple_overhead_bytes"]
    values.update(bytes_read=payload, bytes_read_extra=overhead)
    size = sum(file.file_size for file in kept[0].files)
    if payload is not None and overhead is not None and size:
        values["read_fraction"] = (payload + overhead) / size
    values.update(_reads([file for item in kept for file in item.files], values))
    values["ntuple_cluster_cache"] = kept[0].files[0].cached
    return values


def _reads(files: Sequence[FileRead], values: Mapping[str, Any]) -> Dict[str, Optional[float]]:
    """Reads as a TTree's are counted: a local file has no vector reads, one range is one read."""
    ranges, vectors = values["ntuple_ranges_read"], values["ntuple_vector_reads"]
    if ranges is None or vectors is None:
        return {}
    if {file.file_class for file in files} == {"TFile"} or not files[0].cached:
        return {"read_calls": ranges, "read_calls_single": ranges, "read_calls_vector": 0}
    chunks = ranges / vectors if vectors else None
    return {
        "read_calls": vectors,
        "read_calls_single": 0,
        "read_calls_vector": vectors,
        "vector_chunks": chunks,
    }
