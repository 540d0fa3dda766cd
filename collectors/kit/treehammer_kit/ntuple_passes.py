"""Passes over RNTuples: phases and selections as for TTrees, with counters of their own."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from .pass_summary import (
    DISTANCES,
    KERNEL_COUNTERS,
    FileRead,
    PassRead,
    drop_warm_up,
    median_counter,
    summarize_times,
)
from .payload_task import RNTUPLE, PayloadError
from .read_passes import (
    BranchChoice,
    ReadPasses,
    collect_shared_figures,
    describe_missing_object,
    raise_on_failure,
)

#: Counter of the reader, times in nanoseconds -> catalogue entry.
_CATALOGUE_NAMES: Mapping[str, str] = {
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
_SECONDS_PER_NS = 1e-9


class NTuplePasses(ReadPasses):
    """The passes of one execution over RNTuples."""

    def _open_file(self, url: str) -> Any:
        reader = self._root.treehammer.NTupleReader()
        raise_on_failure(reader, reader.Open(url), "open", url)
        task = self._task
        is_readable = reader.GetTree(task.tree, task.cache_bytes > 0, task.prefetch)
        if not is_readable and reader.kind == "missing":
            message = describe_missing_object(reader, url, task.tree, RNTUPLE)
            raise PayloadError("open", "tree", "get_tree", message)
        raise_on_failure(reader, is_readable, "get_tree", url)
        return reader

    def _sum_zip_bytes(self, reader: Any, positions: List[int]) -> int:
        return int(reader.ZipBytes(positions))

    def _prepare(self, reader: Any, choice: BranchChoice) -> bool:
        return bool(reader.Prepare(choice.positions))

    # All fields of an RNTuple have one length.

    def _find_other_lengths(self, reader: Any, selected: Sequence[str]) -> Dict[str, int]:
        return {}

    def _describe_content(self, *_: Any) -> List[str]:
        return []

    def _collect_figures(self, reader: Any) -> FileRead:
        counters: Dict[str, float] = {
            name: getattr(reader, name) for name in (*KERNEL_COUNTERS, *DISTANCES)
        }
        for item in reader.counters:
            amount, name = int(item.second), _CATALOGUE_NAMES[str(item.first)]
            counters[name] = (
                amount * _SECONDS_PER_NS if name.endswith("_s") and amount >= 0 else amount
            )
        return FileRead(
            **collect_shared_figures(reader), cached=bool(reader.cluster_cache), counters=counters
        )


def summarize_ntuple_passes(passes: Sequence[PassRead]) -> Dict[str, Any]:
    """Compute the catalogue values of RNTuples: medians over the counted passes, and every pass."""
    values = {**summarize_times(passes), **_summarize_ntuple_counters(drop_warm_up(passes))}
    return {name: value for name, value in values.items() if value is not None}


def _summarize_ntuple_counters(passes: Sequence[PassRead]) -> Dict[str, Any]:
    names = (*_CATALOGUE_NAMES.values(), *KERNEL_COUNTERS, *DISTANCES)
    values: Dict[str, Any] = {name: median_counter(passes, name) for name in names}
    payload, overhead = values["ntuple_payload_bytes"], values["ntuple_overhead_bytes"]
    values.update(bytes_read=payload, bytes_read_extra=overhead)
    size = passes[0].file_size
    if payload is not None and overhead is not None and size:
        values["read_fraction"] = (payload + overhead) / size
    files = [file for pass_read in passes for file in pass_read.files]
    values.update(_derive_read_counts(files, values))
    values["ntuple_cluster_cache"] = passes[0].files[0].cached
    return values


def _derive_read_counts(
    files: Sequence[FileRead], values: Mapping[str, Any]
) -> Dict[str, Optional[float]]:
    """Count reads as for a TTree: a local file has no vector reads, one range is one read."""
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
