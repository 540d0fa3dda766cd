"""Free TCP ports for a testbed's servers."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import suppress

from treehammer.errors import TestbedError

#: Below the kernel's range for outgoing connections.
PORT_RANGE = range(20_000, 32_000)


def find_free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Find ports on which no process of this machine listens and that are not ``taken``.

    Raises:
        TestbedError: there are too few.
    """
    free_ports: list[int] = []
    for port in random.sample(PORT_RANGE, len(PORT_RANGE)):  # testbeds may start at the same time
        if len(free_ports) == count:
            return free_ports
        with suppress(OSError), socket.socket() as probe:
            if port not in taken:
                probe.bind(("", port))
                free_ports.append(port)
    raise TestbedError(
        f"fewer than {count} ports from {PORT_RANGE.start} to {PORT_RANGE.stop} are free",
        hint="End the processes that listen on them, or stop a testbed.",
    )
