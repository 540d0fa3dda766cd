"""Reads through a cache: blocks without repeats, what is read before, and the cache's own counts."""

from __future__ import annotations

import itertools
import json
import os
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cache_info import write_info
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors import cache_counts
from treehammer.collectors.cache_counts import ReadCounts, compute_crc32c, parse_cache_info
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.hctests import pinned_tests
from treehammer.load.kit.treehammer_load import cached_reads
from treehammer.load.kit.treehammer_load.cached_reads import (
    CachedReads,
    LoadCacheCounter,
    choose_blocks,
    choose_primed,
    parse_stream_packet,
)
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import LoadFile

SIZE = 1_000_000


@given(
    size=st.integers(1, 3_000_000),
    block=st.integers(1_000, 300_000),
    fraction=st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]),
)
def test_blocks_are_the_fraction_without_repeats(size: int, block: int, fraction: float) -> None:
    chunks = choose_blocks(size, block, fraction, "seed")
    assert fraction * size <= sum(length for _, length in chunks) < fraction * size + 1 + 1e-6
    ends = sorted((offset, offset + length) for offset, length in chunks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= size
    assert {offset % block for offset, _ in chunks} == {0}


def test_order_is_random_and_the_same_for_a_seed() -> None:
    chunks = choose_blocks(SIZE, 10_000, 0.9, "1 0")
    assert chunks == choose_blocks(SIZE, 10_000, 0.9, "1 0") != sorted(chunks)
    assert chunks != choose_blocks(SIZE, 10_000, 0.9, "2 0")
    # A smaller fraction reads the first of the same blocks.
    assert choose_blocks(SIZE, 10_000, 0.1, "1 0") == chunks[:10]


def test_half_is_the_lower_half_of_what_is_read() -> None:
    chunks = choose_blocks(SIZE, 10_000, 0.5, "1 0")
    primed = choose_primed(chunks, "half", SIZE)
    assert len(primed) == len(chunks) / 2
    assert max(primed) < min(set(chunks) - set(primed))
    assert choose_primed(chunks, "cold", SIZE) == choose_primed(chunks, "", SIZE) == []


def test_warm_file_is_read_whole_by_one_client() -> None:
    """A cache that has a part of a file goes on to fetch ahead while the load reads."""
    assert choose_primed([(0, 10)], "warm", 2_500_000) == [
        (0, 1_048_576),
        (1_048_576, 1_048_576),
        (2_097_152, 402_848),
    ]
    reads = CachedReads(make_task(clients=3, fraction=0.1, server_cache="warm"))
    primed = [op for operations in reads.list_preparations() for op in operations if op.chunks]
    assert sum(size for op in primed for _, size in op.chunks) == 2 * SIZE


def make_task(**axes: Any) -> LoadTask:
    return LoadTask(
        files=[LoadFile(f"root://host//f{number}", SIZE) for number in range(2)],
        axes=axes,
        settings={},
        seed=1000,
        index=0,
        jobs=1,
        start_us=None,
        first_step=0,
        step_s=1.0,
        duration_s=10.0,
    )


def test_clients_of_one_file_share_its_blocks() -> None:
    reads = CachedReads(make_task(clients=3, fraction=0.5, block_kib=10))
    assert [part.file.url[-1] for part in reads.parts] == ["0", "1", "0"]
    first, second = ([p for p in reads.parts if p.file.url.endswith(f"f{n}")] for n in (0, 1))
    chunks = [chunk for part in first for chunk in part.chunks]
    assert len(set(chunks)) == len(chunks)
    assert sum(size for _, size in chunks) == SIZE / 2
    assert sum(size for part in second for _, size in part.chunks) == SIZE / 2


def test_clients_read_their_files_one_after_the_other() -> None:
    reads = CachedReads(make_task(files=2, fraction=0.5, block_kib=100, server_cache="warm"))
    for sequences in (reads.list_reads(), reads.list_preparations()):
        (operations,) = map(list, sequences)
        opened = [(op.name, op.file.url[-1]) for op in operations if op.name != "read"]
        assert opened == [("open", "0"), ("close", "0"), ("open", "1"), ("close", "1")]
    sizes = {url: sum(s for _, s in chunks) for url, chunks in reads.list_chunks().items()}
    assert sizes == {"root://host//f0": SIZE / 2, "root://host//f1": SIZE / 2}


def test_sparse_reads_open_and_close_around_their_blocks() -> None:
    reads = CachedReads(make_task(fraction=0.1, block_kib=10, server_cache="half"))
    (operations,) = map(list, reads.list_reads())
    assert [operations[0].name, operations[-1].name] == ["open", "close"]
    assert {operation.name for operation in operations[1:-1]} == {"read"}
    (primed,) = map(list, reads.list_preparations())
    assert {operation.chunks[0] for operation in primed[1:-1]} < {
        operation.chunks[0] for operation in operations[1:-1]
    }


@pytest.mark.parametrize(("client", "name"), [("protocol", "copy"), ("generator", "read_file")])
def test_whole_files_are_moved_at_once(client: str, name: str) -> None:
    reads = CachedReads(make_task(clients=2, pattern="copy", client=client))
    assert [[op.name for op in sequence] for sequence in reads.list_reads()] == [[name], [name]]


def test_client_learns_its_block_and_streams() -> None:
    copies = {"pattern": "copy", "client": "protocol"}
    task = make_task(block_kib=64, streams=4, **copies)
    assert task.list_client_settings("root://host//f") == {
        "XRD_CPCHUNKSIZE": "65536",
        "XRD_SUBSTREAMSPERCHANNEL": "4",
    }
    sparse = make_task(block_kib=64, pattern="sparse", client="protocol")
    assert sparse.list_client_settings("root://host//f") == {}
    assert make_task(**copies).list_client_settings("http://host/f") == {}
    with pytest.raises(PayloadError, match="block_kib = 64: the copy program of this door has no"):
        make_task(block_kib=64, **copies).list_client_settings("http://host/f")
    with pytest.raises(PayloadError, match="streams = 2: only root"):
        make_task(streams=2).list_client_settings("http://host/f")


#: A file of XRootD 5.8.1 while its reader had it open: xrdpfc_print gives 24414 kB in 191 blocks of
#: 128 kB, complete, one access of 7004 kB hit and 320 kB missed.
REAL_INFO = bytes.fromhex(
    "04000000000002000000000040787d010000000096ab0a6b00000000000000000000000001000000"
    "00000000020000000100000028af2760ffffffffffffffffffffffffffffffffffffffffffffff7f"
    "96ab0a6b00000000000000000000000001000000000000000000000000000000e0706d0000000000"
    "000005000000000000000000000000001aa10248"
)


def test_real_cache_info_is_parsed() -> None:
    info = parse_cache_info(REAL_INFO)
    assert (info.block, info.size, info.accesses, info.is_open) == (131072, 25_000_000, 1, True)
    assert info.counts == ReadCounts(hit=7_172_320, missed=320 * 1024, stored=25_000_000)


def test_checksum_is_castagnoli() -> None:
    assert compute_crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize(
    ("stored", "expected"), [([], 0), ([0, 3], 2000), ([9], 500), ([*range(10)], 9500)]
)
def test_stored_bytes_are_those_of_blocks(tmp_path: Path, stored: list[int], expected: int) -> None:
    write_info(tmp_path / "i", stored, (10, 20, 3), (1, 2, 3))
    info = parse_cache_info((tmp_path / "i").read_bytes())
    assert info.counts == ReadCounts(11, 22, 6, expected)
    assert (info.is_open, info.counts.fetched) == (False, expected + 6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "incomplete"),
        (REAL_INFO[:100], "incomplete|checksum"),
        (b"\3" + REAL_INFO[1:], "version 3"),
        (REAL_INFO[:-10] + b"\1" + REAL_INFO[-9:], "checksum"),
        (REAL_INFO[:4] + b"\xff" * 48 + REAL_INFO[52:], "checksum"),
    ],
)
def test_torn_cache_info_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_cache_info(content)


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_as_cache_info(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\.cinfo"):
        parse_cache_info(content)


EVENT = {
    "event": "file_close",
    "lfn": "/f0",
    "size": 9500,
    "blk_size": 1000,
    "b_hit": 70,
    "b_miss": 20,
    "b_bypass": 10,
    "b_todisk": 4000,
    "b_prefetch": 3000,
}


def make_packet(**changes: Any) -> bytes:
    head = json.dumps({"code": "g", "pseq": 1, "gs": {"type": "C"}})
    return f"{head}\n{json.dumps({**EVENT, **changes}, separators=(',', ':'))}\0".encode()


def test_stream_packets_hold_closes() -> None:
    (close,) = parse_stream_packet(make_packet())
    assert (close.path, close.block, close.prefetched) == ("/f0", 1000, 3000)
    assert close.counts == ReadCounts(70, 20, 10, 4000)
    assert list(parse_stream_packet(make_packet(event="other"))) == []
    assert list(parse_stream_packet(make_packet(b_hit="x"))) == []
    assert list(parse_stream_packet(b'f\0\0{"event":')) == []


URLS = {"root://host//f0": [(0, 100), (900, 200)], "root://host//f1": [(9000, 100)]}


def test_counts_are_those_since_the_begin(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cache_counts, "POLL_S", 0.01)
    write_info(tmp_path / "f0.cinfo", [0], (0, 500, 0))
    counter = LoadCacheCounter({"files": str(tmp_path)}, URLS)
    counter.begin(is_primed=False)
    write_info(tmp_path / "f0.cinfo", [0, 2], (0, 500, 0), (100, 30, 5))
    write_info(tmp_path / "f1.cinfo", [9], (0, 7, 0))
    figures = counter.end(read_bytes=142)
    assert figures == pytest.approx(
        {
            "hit_mb": 100e-6,
            "miss_mb": 37e-6,
            "bypass_mb": 5e-6,
            # One more block of 1000 bytes, the last one of 500, and what was passed on.
            "fetched_mb": 1505e-6,
            "cache_block_kib": 1000 / 1024,
            "hit_share": 100 / 142,
            "fetch_ratio": 1505 / 142,
            "stored_share": 0.5,
        }
    )
    assert counter.count_bytes() == {
        "server_cache_stored_bytes": 1000,
        "server_cache_asked_bytes": 142,
        "server_cache_fetched_bytes": 1505,
        "cache_block_kib": 0,
    }


def test_file_that_stays_open_has_no_counts(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cache_counts, "SETTLE_S", 0.1)
    monkeypatch.setattr(cache_counts, "POLL_S", 0.01)
    counter = LoadCacheCounter({"files": str(tmp_path)}, {"root://host//f0": [(0, 500)]})
    counter.begin(is_primed=False)
    write_info(tmp_path / "f0.cinfo", [0], (0, 500, 0), detached=0)
    assert counter.end(500) == {}
    assert "/f0 is not closed" in capsys.readouterr().out


def test_unseen_folder_and_doors_without_cache_count_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cache in ({}, {"files": str(tmp_path / "no"), "monitor": "host"}):
        counter = LoadCacheCounter(cache, URLS)
        counter.begin(is_primed=True)
        assert counter.end(1) == {}
        counter.close()
    assert f"does not see the cache's {tmp_path}/no" in capsys.readouterr().out


def test_stream_that_was_silent_before_is_not_awaited_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every read through a cache without a stream would wait twice."""
    monkeypatch.setattr(cache_counts, "SETTLE_S", 0.1)
    counter = LoadCacheCounter({"monitor": "127.0.0.1:0"}, URLS)
    counter.begin(is_primed=True)
    monkeypatch.setattr(cache_counts, "SETTLE_S", 3600)
    assert counter.end(read_bytes=200) == {}
    assert "the cache sends no pfc stream" in capsys.readouterr().out


def test_stream_alone_gives_the_counts(monkeypatch: Any) -> None:
    monkeypatch.setattr(cache_counts, "POLL_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        port = sender.getsockname()[1]
        sender.close()
        counter = LoadCacheCounter({"monitor": f"127.0.0.1:{port}"}, URLS)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
                address = ("127.0.0.1", port)
                for path in ("/f0", "/f1"):
                    server.sendto(make_packet(lfn=path, b_hit=999_999), address)
                counter.begin(is_primed=True)
                for path in ("/f0", "/f1"):
                    server.sendto(make_packet(lfn=path), address)
                figures = counter.end(read_bytes=200)
        finally:
            counter.close()
    assert figures["hit_mb"] == figures["stream_hit_mb"] == pytest.approx(140e-6)
    assert figures["fetched_mb"] == figures["stream_fetched_mb"] == pytest.approx(8020e-6)
    assert figures["hit_share"] == 0.7
    assert figures["prefetched_mb"] == pytest.approx(6000e-6)


@pytest.mark.parametrize(
    ("pattern", "operation", "count", "fraction"),
    [("sparse", "read", 50, 0.5), ("copy", "read_file", 1, 1.0)],
)
def test_mounted_files_are_read_before_and_counted(
    tmp_path: Path, monkeypatch: Any, pattern: str, operation: str, count: int, fraction: float
) -> None:
    (tmp_path / "data").write_bytes(os.urandom(100 * 10_240))
    axes = {"pattern": pattern, "fraction": 0.5, "block_kib": 10, "server_cache": "warm"}
    job = {
        "format": 1,
        "execution": {
            "files": [{"url": str(tmp_path / "data"), "size": 100 * 10_240}],
            "variant": axes,
            "seed": 1,
        },
        "settings": {"direction": "read"},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    for changed in ("signal.signal", "sys.setswitchinterval"):
        monkeypatch.setattr(changed, lambda *_: None)
    outcome = cached_reads.read_through_cache(LoadTask.read(str(tmp_path / "job.json")))
    reads = sum(row["done"] for row in outcome.rows if row["operation"] == operation)
    assert reads == count  # the reads before are not recorded
    assert outcome.figures["asked_mb"] == 1.024 * fraction
    assert outcome.figures["asked_fraction"] == fraction
    assert "hit_mb" not in outcome.figures
    folder = pinned_tests.SHIPPED_TESTS_FOLDER / "cache-read"
    declared = tomllib.loads((folder / "test.toml").read_text())["metrics"]
    assert set(outcome.figures) <= set(declared)
