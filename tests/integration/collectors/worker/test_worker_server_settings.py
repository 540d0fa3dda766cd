"""A command that applies settings of a server before each execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import ServerCommand

#: Fails unless the server has the setting of its variant.
PAYLOAD = """
    #!/bin/sh
    set -eu
    test "$(cat {server})" = "$TREEHAMMER_AXIS_SERVER_THREADS"
    echo '{{"format": 1, "values": {{}}, "extras": {{}}}}' > "$TREEHAMMER_RESULT"
    """


def run(bench: Any, make_spec: Any, server: Path, script: str, **changes: Any) -> Any:
    """Run two executions with 20 and 70 threads, and leave 20 behind."""
    folder = bench.folder / "payload"
    folder.mkdir()
    (folder / "apply.sh").write_text(f"#!/bin/sh\nset -eu\n{script}\n")
    (folder / "apply.sh").chmod(0o755)
    before = ServerCommand("apply.sh", {"server_threads": 20}, changes.pop("timeout_s", 30.0))
    specs = [make_spec(n, variant={"server_threads": value}) for n, value in ((1, 20), (2, 70))]
    payload = PAYLOAD.format(server=server)
    return bench.run(payload, *specs, kind="executable", before=before, **changes)


def test_each_execution_has_its_setting_and_the_first_is_left(
    bench: Any, make_spec: Any, tmp_path: Path
) -> None:
    server = tmp_path / "server"
    script = f'echo "$TREEHAMMER_AXIS_SERVER_THREADS" > {server}; echo applied $TREEHAMMER_AXIS_SERVER_THREADS'
    ran = run(bench, make_spec, server, script)
    assert (ran.exit_code, ran.errors) == (0, "")
    assert [record.values.get("failure_class") for record in ran.records] == [None, None]
    logs = [ran.read_log(f"{name}.before") for name in ("1-1", "1-2", "end")]
    assert logs == ["applied 20\n", "applied 70\n", "applied 20\n"]
    assert server.read_text() == "20\n"


def test_failing_command_fails_the_execution(bench: Any, make_spec: Any, tmp_path: Path) -> None:
    server = tmp_path / "server"
    server.write_text("20\n")
    script = 'test "$TREEHAMMER_AXIS_SERVER_THREADS" = 20 || { echo no such host; exit 3; }'
    ran = run(bench, make_spec, server, script)
    assert ran.exit_code == 1
    good, failed = (record.values for record in ran.records)
    assert good.get("failure_class") is None
    assert (failed["failure_class"], failed["failure_kind"]) == ("software-setup", "server-setting")
    assert failed["failure_message"] == (
        "apply.sh, which applies server_threads, ended with 3: no such host (log: logs/1-2.before)"
    )
    assert "payload_wall_s" not in failed


def test_hanging_command_is_ended(bench: Any, make_spec: Any, tmp_path: Path) -> None:
    ran = run(bench, make_spec, tmp_path / "no", "sleep 600", timeout_s=0.5)
    assert ran.exit_code == 1
    assert {record.values["failure_kind"] for record in ran.records} == {"server-setting"}
    assert "did not end within 0.5 s" in ran.records[0].values["failure_message"]
    assert "settings of the server were not restored" in ran.errors
