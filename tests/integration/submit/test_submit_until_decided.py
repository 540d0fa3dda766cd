"""A comparison on this machine that ends with a verdict, as soon as it is decided."""

from __future__ import annotations

import json

from local_user import LocalUser

#: A payload that takes turns without ROOT: each entry burns CPU, with release "new" half as much again.
TURNS = """\
#!/usr/bin/env python3
import json, os, time

prefix = os.environ["TREEHAMMER_TURNS"]
work = 30 if os.environ["TREEHAMMER_AXIS_RELEASE"] == "new" else 20
passes, total = 0, 0.0
with open(prefix + ".commands") as commands, open(prefix + ".answers", "w", 1) as answers:
    answers.write("ready\\n")
    for line in commands:
        word, *numbers = line.split()
        if word == "finish":
            break
        answer = 0
        if word == "open":
            answer = 400
        elif word == "discard":
            total = 0.0
        elif word == "close":
            passes += 1
        elif word == "run":
            first, last = map(int, numbers)
            cpu, wall = time.process_time_ns(), time.monotonic_ns()
            for _ in range((last - first) * work):
                sum(range(1000))
            cpu = time.process_time_ns() - cpu
            total += 1e-9 * cpu
            answer = f"{cpu} {time.monotonic_ns() - wall} 1 0 0 0"
        answers.write(f"{answer}\\n")
loop_s = total / passes
times = {"loop_cpu_s": loop_s, "loop_wall_s": loop_s, "passes_done": passes, "passes_counted": passes}
per_event = {"cpu_per_event_s": loop_s / 400, "wall_per_event_s": loop_s / 400}
values = {"events_read": 400, **times, **per_event}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {}}, stream)
"""
TEST_TOML = """
[test]
name = "turns"
payload = "run.py"
mode = "paired"
[matrix]
root = ["none"]
release = ["old", "new"]
bundle = ["release"]
"""


def test_comparison_ends_with_a_verdict_after_three_launches(local_user: LocalUser) -> None:
    payload = local_user.test / "run.py"
    payload.write_text(TURNS)
    payload.chmod(0o755)
    (local_user.test / "test.toml").write_text(TEST_TOML)
    result = local_user.invoke_command("submit", str(local_user.test), "--wait")
    assert result.exception is None, result.output
    assert result.return_value == 0
    assert "slower" in result.output
    assert "Decided after 3 launches of each variant, of at most 24." in result.output
    rows = local_user.read_measurements("round", "kind")
    launches = {(row["job_id"], row["round"]): row["kind"] for row in rows}
    assert sorted(map(str, launches.values())) == ["control", "timed", "timed", "timed"]
    assert {row["failure_class"] for row in rows} == {None}
    campaign = local_user.last_campaign_id()
    compared = local_user.invoke_command(
        *("compare", "old", "new", "--axis", "release", "--campaign", campaign, "--json")
    )
    verdicts = {row["metric"]: row["verdict"] for row in json.loads(compared.stdout)[:2]}
    assert verdicts["cpu_per_event_s"] == "slower"
    assert "each of its up to 4 looks" in compared.stderr
