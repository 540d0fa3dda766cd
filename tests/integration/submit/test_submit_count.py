"""Real counts of instructions with valgrind and ROOT releases."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from local_user import LocalUser
from machine_requirements import skip_or_fail

from treehammer import config
from treehammer.errors import CountingError
from treehammer.sql.write.store import Store

A, B = "6.38.00", "6.40.00"
VARIANT = ("-P", "branches=1", "-P", "cache_mb=30")
#: Events of the real count: few, since starting ROOT under valgrind takes most of the time.
EVENTS = 50


@pytest.fixture
def counting_user(local_user: LocalUser) -> LocalUser:
    """A user with the machine's cached releases and datasets."""
    if shutil.which("valgrind") is None:
        skip_or_fail("there is no valgrind here (Debian: valgrind)")
    cache_dir = config.load_settings({}).cache_dir
    local_user.settings = replace(local_user.settings, cache_dir=cache_dir, local_slots=2)
    return local_user


@pytest.mark.root
@pytest.mark.slow
def test_two_releases_are_counted_and_stored(counting_user: LocalUser) -> None:
    result = counting_user.invoke_command(
        "count", A, B, "ttree-read", *VARIANT, "--events", str(EVENTS), "--json"
    )
    assert result.exception is None, result.output
    assert result.return_value == 0
    changes = json.loads(result.stdout)
    total, *parts = changes
    assert (total["library"], total["function"]) == ("", "")
    assert total["a_per_event"] > 100_000
    assert abs(total["relative"]) < 0.05, "neighboring releases do nearly the same"
    libraries = [one for one in parts if not one["function"]]
    assert {"libz.so", "libRIO.so", "libTree.so"} <= {one["library"] for one in libraries}
    for side in ("a_per_event", "b_per_event"):
        assert sum(one[side] for one in libraries) == pytest.approx(total[side], rel=1e-3)
    functions = {one["function"]: one["difference"] for one in parts if one["function"]}
    assert 700 < functions["TBufferFile::ReadFastArray(float*, int)"] < 900
    with Store.open(counting_user.settings.database, create=False) as store:
        rows = store.instruction_counts()
    assert {row.root_version for row in rows} == {A, B}
    assert {row.events for row in rows} == {EVENTS}
    assert len({row.count_id for row in rows}) == 2


@pytest.mark.root
def test_payload_without_root_cannot_be_counted(counting_user: LocalUser) -> None:
    result = counting_user.invoke_command(
        "count", A, B, str(counting_user.test), "-P", "style=one", "--no-store"
    )
    assert result.return_value == CountingError.exit_code
    assert "an executable cannot be counted" in result.output


def test_count_without_valgrind_says_how_to_install_it(
    local_user: LocalUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    result = local_user.invoke_command("count", A, B, "ttree-read")
    assert isinstance(result.exception, CountingError)
    assert "apt install valgrind" in str(result.exception)
