"""XRootD's monitoring stream: a packet of a real server, lost packets, and their rows."""

from __future__ import annotations

import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from treehammer.collectors.kit.treehammer_load.load_task import LoadTask
from treehammer.collectors.kit.treehammer_load.server.log_formats import LogError
from treehammer.collectors.kit.treehammer_load.server.monitoring_stream import StreamDecoder
from treehammer.collectors.kit.treehammer_load.server.server_payloads import follow_log
from treehammer.collectors.record.operation_steps import find_operation_problems

#: Sent by XRootD 5.8.1 with ``xrootd.monitor all fstat 1s lfn ops ssq xfr 1``: two files read, one written.
PACKET = bytes.fromhex(
    "660001ec6b03cf6002010018000000076b03cf626b03cf620000607ee4429b960101002800000002"
    "00000000004c4b40000000012f6c6f61642f6269672e62696e000000000000000006007000000002"
    "000000000053ec60000000000000012c000000000000000000000002000000010000000000020002"
    "00000000000000020007a120004c4b400000012c0000012c000000000000000042b6f6f947d40000"
    "40f5f900000000004010000000000000000000000000000001010024000000030000000000000000"
    "000000012f6c6f61642f772e62696e00000000000006007000000003000000000000000000000000"
    "0000000000000000002dc6c000000000000000000000000100000000000000000000000000000000"
    "000000000000000000000000002dc6c0002dc6c00000000000000000000000000000000000000000"
    "0000000042a05ef39b200000010100280000000400000000004c4b40000000012f6c6f61642f6269"
    "672e62696e000000000000000006007000000004000000000000c350000000000000000000000000"
    "000000000000000100000000000000000000000000000000000000000000c3500000c35000000000"
    "00000000000000000000000041e2a05f200000000000000000000000000000000000000000000000"
    "000000000400000800000001"
)


def renew(sequence: int, time_s: int) -> bytes:
    """Return the packet with another number and time."""
    window = struct.pack(">ii", time_s, time_s)
    return PACKET[:1] + bytes([sequence % 256]) + PACKET[2:16] + window + PACKET[24:]


def test_packet_of_a_server_is_decoded() -> None:
    """The client read 5.5 MB, 300 B in a vector and 50 kB, and wrote 3 MB."""
    decoder = StreamDecoder()
    events = decoder.decode(PACKET)
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for event in events:
        calls[event.operation] += event.calls
        moved[event.operation] += event.bytes
    assert calls == {"open": 3, "close": 3, "read": 3, "vector_read": 1, "write": 1}
    assert +moved == {"read": 5_550_000, "vector_read": 300, "write": 3_000_000}
    assert {event.time_us for event in events} == {1_795_411_810_000_000}
    assert decoder.decode(b"u" + PACKET[1:]) == []


def test_lost_and_broken_packets_are_counted() -> None:
    decoder = StreamDecoder()
    for sequence in (250, 251, 255, 2):
        decoder.decode(renew(sequence, 1_795_411_810))
    assert (decoder.lost, decoder.invalid) == (3 + 2, 0)
    assert decoder.decode(PACKET[:100]) == []
    assert decoder.decode(PACKET[:9] + b"\0\0\0" + PACKET[12:]) == []
    assert decoder.invalid == 2


@pytest.fixture
def keep_handlers() -> Iterator[None]:
    """Restore the signal handlers that a payload sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def make_task(address: str) -> LoadTask:
    settings = {"log": address, "format": "xrootd-monitoring", "settle_s": 0, "server": "disk1"}
    return LoadTask([], {}, settings, 1, 1, 1, None, 0, 0.5, 1.0)


@pytest.mark.usefixtures("keep_handlers")
def test_packets_are_received_during_the_load() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    ended = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sequence = 0
            while not ended.wait(0.02):
                sender.sendto(renew(sequence, int(time.time())), address)
                sequence += 1

    thread = threading.Thread(target=send)
    thread.start()
    try:
        outcome = follow_log(make_task("{}:{}".format(*address)))
    finally:
        ended.set()
        thread.join()
    assert find_operation_problems(outcome.rows) == []
    done: Counter[str] = Counter()
    for row in outcome.rows:
        done[row["operation"]] += row["done"]
        assert (row["side"], row["server"], row["latency"]) == ("server", "disk1", "")
    assert done["open"] == done["close"] == done["read"] == 3 * done["write"] > 0
    assert outcome.figures == {"calls": float(sum(done.values())), "lost_packets": 0.0}


@pytest.mark.parametrize("address", ["9930", "127.0.0.1:port", "192.0.2.1:9930"])
def test_useless_addresses_are_refused(address: str) -> None:
    with pytest.raises(LogError, match=r"name HOST:PORT, to which xrootd\.monitor sends"):
        follow_log(make_task(address))
