"""Ports for what listens in a testbed."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection
from contextlib import suppress

from treehammer.errors import TestbedError

#: Below the range from which the kernel takes ports of outgoing connections.
PORT_RANGE = range(20_000, 32_000)


def find_free_ports(count: int, taken: Collection[int] = ()) -> list[int]:
    """Ports that nobody on this machine listens on, and that are not ``taken``.

    Raises:
        TestbedError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(PORT_RANGE, len(PORT_RANGE)):  # testbeds that start at once
        if len(found) == count:
            return found
        with suppress(OSError), socket.socket() as one:
            if port not in taken:
                one.bind(("", port))
                found.append(port)
    raise TestbedError(
        f"fewer than {count} ports from {PORT_RANGE.start} to {PORT_RANGE.stop} are free",
        hint="End what listens on them, or take a testbed down.",
    )
