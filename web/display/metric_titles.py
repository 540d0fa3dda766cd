"""Names of metrics and columns for readers; files and the API keep those of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.column_names import EXTRA_PREFIX

#: Titles that the rules below would not find.
_TITLES: Mapping[str, str] = {
    "eff_job": "CPU efficiency",
    "eff_payload": "CPU efficiency of the payload",
    "eff_loop": "CPU efficiency of the event loop",
    "eff_loop_corrected": "CPU efficiency of the event loop, corrected",
    "eff_access": "CPU efficiency with staging",
    "event_rate_hz": "event rate",
    "access_rate_hz": "event rate with staging",
    "axis_root": "ROOT release",
    "axis_branches": "share of branches",
    "axis_events": "share of events",
    "axis_cache_mb": "cache size",
    "axis_cache": "page cache",
    "axis_format": "data format",
    "axis_access": "access",
    "storage_site": "site of the storage",
    "door_protocol": "protocol",
    "test_name": "test",
    "campaign_id": "campaign",
    "job_id": "job",
    "commit_id": "commit",
    "door_rtt_s": "round-trip time to the door",
    "load1_start": "load at the start",
    "load1_end": "load at the end",
    "first_byte_s": "time to the first byte",
    "read_latency_hist": "read latency",
    "ctx_voluntary": "voluntary context switches",
    "ctx_involuntary": "involuntary context switches",
    "cpu_mhz": "CPU frequency",
    "cpu_steal_s": "CPU time stolen by the hypervisor",
    "dirty": "uncommitted changes",
    "rms": "RMS",
}
#: Words of a name -> words for readers.
_WORDS: Mapping[str, str] = {
    "cpu": "CPU",
    "io": "I/O",
    "os": "OS",
    "psi": "pressure stall,",
    "root": "ROOT",
    "ntuple": "RNTuple",
    "perfstats": "TTreePerfStats:",
    "libcore": "libCore",
    "lz4": "LZ4",
    "lzma": "LZMA",
    "zstd": "Zstandard",
    "rss": "resident memory",
    "mem": "memory",
    "url": "URL",
    "sha256": "SHA-256",
    "cxx": "C++",
    "python": "Python",
    "hw": "hardware",
    "sd": "standard deviation",
    "stagein": "stage-in",
    "max": "maximum",
}
#: Last words of times, after the unit is left out.
_LAST_TIME_WORDS: Mapping[str, str] = {
    **_WORDS,
    "wall": "wall time",
    "cpu": "CPU time",
    "user": "user CPU time",
    "sys": "system CPU time",
}
_UNIT_WORDS: Mapping[str, str] = {
    "s": "s",
    "us": "us",
    "ns": "ns",
    "B": "bytes",
    "Hz": "hz",
    "MB": "mb",
    "MHz": "mhz",
}
_QUANTILE = re.compile(r"p(\d+)")


@cache
def title_column(name: str) -> str:
    """Return the title of a metric or column inside a sentence, e.g. ``CPU time per event``."""
    if name in _TITLES:
        return _TITLES[name]
    metric = METRICS_BY_NAME.get(name)
    unit = metric.unit if metric else ""
    words = _drop_unit(name.removeprefix("axis_").removeprefix(EXTRA_PREFIX).split("_"), unit)
    is_per_event = len(words) > 2 and words[-2:] == ["per", "event"]
    *first, last = words[:-2] if is_per_event else words
    title_words = [_WORDS.get(word, word) for word in first]
    if title_words and (quantile := _QUANTILE.fullmatch(last)):
        title_words[-1] += ","
        title_words.append(f"{quantile[1]} % quantile")
    else:
        last_words = _LAST_TIME_WORDS if unit in ("s", "ns") else _WORDS
        title_words.append(last_words.get(last, last))
    return " ".join([*title_words, "per event"] if is_per_event else title_words)


def _drop_unit(words: list[str], unit: str) -> list[str]:
    """Drop the last word if it is the unit; bytes that were counted stay bytes."""
    is_unit = len(words) > 1 and words[-1] == _UNIT_WORDS.get(unit)
    is_counted = words[-1] == "bytes" and not {"rss", "mem", "size"} & {*words}
    return words[:-1] if is_unit and not is_counted else words


def head_column(name: str) -> str:
    """Return the title of a metric or column at the start of a sentence, e.g. ``Event rate``."""
    title = title_column(name)
    return title[:1].upper() + title[1:]


def head_axis(axis: str) -> str:
    """Return the title of an axis that can be compared, e.g. ``ROOT release`` or ``Site``."""
    column = f"axis_{axis}"
    return head_column(column if column in METRICS_BY_NAME or column in _TITLES else axis)
