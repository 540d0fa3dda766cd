"""Command ``read`` with a real ROOT: figures that uproot counts, too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import uproot
from local_user import LocalUser

from treehammer import config
from treehammer.sql.write.store import Store

EVENTS = 20_000


def test_figures_of_selected_branches_are_those_of_uproot(
    local_user: LocalUser, tmp_path: Path
) -> None:
    path = tmp_path / "some numbers.root"
    values = np.random.default_rng(1).integers(0, 1000, (3, EVENTS))
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        branches = dict.fromkeys(("x_a", "x_b", "y"), "int64")
        file.mktree("events", branches).extend(dict(zip(branches, values, strict=True)))
    local_user.settings.cache_dir.mkdir(exist_ok=True)
    local_user.settings.software_dir.symlink_to(config.load_settings().software_dir)

    result = local_user.invoke_command(
        "read", str(path), "-b", "x_*", "--root", "6.40.00", "--keep", "mine", "--json"
    )

    document = json.loads(result.stdout)
    assert (document["tree"], document["format"]) == ("events", "ttree")
    with uproot.open(path) as file:
        selected = [file["events"][name] for name in ("x_a", "x_b")]
        compressed = sum(branch.compressed_bytes for branch in selected)
    (read,) = document["reads"]
    assert (read["events"], read["branches"]) == (EVENTS, 2)
    assert (read["compressed_bytes"], read["uncompressed_bytes"]) == (compressed, 2 * 8 * EVENTS)
    assert read["events_per_s"] == pytest.approx(EVENTS / read["wall_s"])
    assert read["compressed_mb_per_s"] == pytest.approx(compressed / read["wall_s"] / 1e6)
    with Store.open(local_user.settings.database, create=False) as store:
        assert [campaign.name for campaign in store.campaigns()] == ["mine"]
    assert not local_user.settings.datasets_dir.exists()
