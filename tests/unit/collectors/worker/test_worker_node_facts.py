"""Facts about the node."""

from __future__ import annotations

import pytest

from treehammer.collectors.worker.probes.node_state import find_machine

AD = 'Name = "slot1_1@wn7.example"\nMachine = "wn7.example"\n'
MACHINE_ID, BOOT_ID = f"{'a' * 32}\n", "1b4e28ba-2fa1-11d2-883f-0016d3cca427\n"


@pytest.mark.parametrize("host", ["pod-1", "pod-2"])
def test_pool_names_the_machine_below_changing_hosts(host: str) -> None:
    assert find_machine(host, AD, MACHINE_ID, BOOT_ID) == "wn7.example"


def test_machine_without_another_name_is_known_by_hashed_identities() -> None:
    by_id = find_machine("wn7", AD, MACHINE_ID, BOOT_ID)
    in_container = find_machine("wn7", "", "", BOOT_ID)
    assert by_id == find_machine("pod-1", "", MACHINE_ID, "other")
    assert by_id not in (in_container, None)
    assert in_container == find_machine("pod-2", "", "uninitialized\n", BOOT_ID)
    assert "aaaa" not in str(by_id)
    assert find_machine("wn7", "", "uninitialized\n", "") is None
