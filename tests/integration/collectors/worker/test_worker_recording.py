"""Variables of a test's payload, and the recording of its XRootD client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from treehammer.collectors.job_spec import CHECKSUM

#: Writes a recording as the plug-in of the XRootD client does, and its result.
PAYLOAD = """
import json, os
for name in ("XRD_PLUGIN", "XRD_RECORDERPATH", "XRD_PARALLELEVTLOOP"):
    print(name, os.environ.get(name))
if {writes}:
    with open(os.environ["XRD_RECORDERPATH"], "w") as stream:
        stream.write("rows")
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({{"format": 1, "values": {{}}}}, stream)
"""


@pytest.mark.parametrize("writes", [True, False])
def test_recordings_come_home_beside_the_records(
    bench: Any, make_spec: Callable[..., Any], writes: bool
) -> None:
    ran = bench.run(
        PAYLOAD.format(writes=writes),
        make_spec(variant={"loops": 4}),
        make_spec(position=2, kind=CHECKSUM, variant={"loops": 1}),
        record=True,
        environment={"XRD_PARALLELEVTLOOP": "{loops}"},
    )
    assert "XRD_PLUGIN libXrdClRecorder.so" in ran.read_log("1-1.out")
    assert "XRD_PARALLELEVTLOOP 4" in ran.read_log("1-1.out")
    # Values are compared in executions that are not timed, and replayed by nobody.
    assert "XRD_PLUGIN None" in ran.read_log("1-2.out")
    folder = ran.folder / "recordings"
    if not writes:
        assert not folder.exists()
        assert "1-1: nothing was recorded" in ran.errors
        return
    assert sorted(path.name for path in folder.iterdir()) == ["1-1.csv", "1-1.json"]
    assert (folder / "1-1.csv").read_text() == "rows"
    process = json.loads((folder / "1-1.json").read_text())
    values = ran.records[0].values
    assert values["started_us"] <= process["started_us"] < process["ended_us"]
    assert process["ended_us"] <= values["ended_us"] + 1000
