"""A test with ``payload = "any"`` at the sites of a pool."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from campaign_fixtures import _quick_polls, spool, user
from grid_campaigns import GridUser

__all__ = ["_quick_polls", "spool", "user"]

pytestmark = pytest.mark.slow

TEST_TOML = """
[test]
name = "blocks"
payload = "any"
files = ["blocks.py"]
repeats = 1
rounds = 1
wall_limit_s = 60
memory_limit_mb = 100
[matrix]
root = ["none"]
[settings]
command = "python3 blocks.py"
"""
#: Reads 40 blocks of a file of 20, each of them twice.
PROGRAM = """
import os
descriptor = os.open("blocks.bin", os.O_RDWR | os.O_CREAT)
os.write(descriptor, os.urandom(20 * 4096))
for number in range(40):
    assert len(os.pread(descriptor, 4096, number % 20 * 4096)) == 4096
"""


def test_command_has_the_same_record_at_each_site(user: GridUser) -> None:
    (user.test / "test.toml").write_text(TEST_TOML)
    (user.test / "blocks.py").write_text(PROGRAM)
    sites = [*islice(user.grid.box.sites, 2)]
    campaign = user.submit_campaign("--sites", ",".join(sites))
    user.follow_campaign(campaign)
    rows = user.read_measurements("site", "files_read", "read_calls", "bytes_read", "file_reads")
    assert sorted(str(row["site"]) for row in rows) == sites
    for row in rows:
        assert (row["files_read"], row["read_calls"], row["bytes_read"]) == (1, 40, 40 * 4096), row
        (file,) = json.loads(str(row["file_reads"]))["files"]
        assert file["path"].endswith("/blocks.bin")
        assert file["touched"] == 20 * 4096
