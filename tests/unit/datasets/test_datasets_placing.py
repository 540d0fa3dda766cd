"""Following rules, and what Rucio's answers mean: our own logic, with a Rucio that is played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rucio.common import exception as rucios

from treehammer import config
from treehammer.datasets import placing
from treehammer.datasets.catalogues import Replica
from treehammer.datasets.placing import COPYING, HERE, REFUSED, STUCK, WAITING, Standing, follow
from treehammer.datasets.rucio import Rucio
from treehammer.datasets.rucio_answers import (
    Absent,
    Denied,
    DidFile,
    Exists,
    NoStorage,
    Quota,
    Rse,
    Rule,
    rule_of,
    translated,
)
from treehammer.datasets.rucio_catalogue import url_for_root
from treehammer.errors import CatalogueError, ConfigError
from treehammer.terminal import silent

RULE = Rule("r1", "A_DATA", "me", "REPLICATING", 0, 2, 0, "", None)
OK = replace(RULE, state="OK", ok=2, copying=0)
HUNG = replace(RULE, state="STUCK", copying=0, stuck=2, error="Socket timeout")
SPOILT = replace(HUNG, error="SOURCE CHECKSUM mismatch")
ASKED = Standing("A", "A_DATA", of=2, rule="r1")


class Played:
    """Gives one answer after another, the last for ever; its clock is the test's."""

    def __init__(self, *answers: Rule | None, may_boost: bool = True) -> None:
        self.answers = list(answers)
        self.may_boost = may_boost
        self.boosts: list[float] = []
        self.now = 0.0

    def rule(self, rule_id: str) -> Rule:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise Absent(f"no rule {rule_id}")
        return answer

    def boost(self, rule_id: str) -> None:
        if not self.may_boost:
            raise Denied("not you")
        self.boosts.append(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(self, *standings: Standing, patience_s: float = 100.0) -> list[list[Standing]]:
        rucio = cast(Rucio, self)
        looks = follow(
            standings or [ASKED], rucio, patience_s, sleep=self.sleep, clock=lambda: self.now
        )
        return [list(look) for look in looks]


def test_rules_are_followed_until_all_is_there() -> None:
    looks = Played(replace(RULE, copying=0), RULE, replace(RULE, ok=1, copying=1), OK).follow()
    assert [look[0].state for look in looks] == [WAITING, COPYING, COPYING, HERE]
    assert [look[0].files for look in looks] == [0, 0, 1, 2]


def test_a_stuck_rule_is_tried_again_with_growing_pauses_and_left_at_last() -> None:
    rucio = Played(HUNG)
    looks = rucio.follow(patience_s=300)
    assert looks[-1][0] == replace(ASKED, state=STUCK, reason="Socket timeout")
    assert len(rucio.boosts) == 4
    pauses = [b - a for a, b in zip(rucio.boosts, rucio.boosts[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert 300 <= rucio.now < 330


def test_a_rule_that_is_tried_in_vain_for_ever_does_not_hold_us() -> None:
    rucio = Played(*[RULE, HUNG] * 100)
    assert rucio.follow()[-1][0].state == STUCK
    assert rucio.now < 200


@pytest.mark.parametrize("rucio", [Played(SPOILT), Played(HUNG, may_boost=False)])
def test_nothing_is_asked_for_in_vain(rucio: Played) -> None:
    assert rucio.follow()[-1][0].state == STUCK
    assert not rucio.boosts


def test_what_was_refused_or_is_gone_holds_nobody() -> None:
    refused = replace(ASKED, state=REFUSED, reason="no quota", rule="")
    (look,) = Played(None).follow(ASKED, refused)
    assert [one.state for one in look] == [REFUSED, REFUSED]
    assert [one.reason for one in look] == ["its rule is no more", "no quota"]


def test_others_are_not_held_by_one_that_is_stuck() -> None:
    class Both(Played):
        def rule(self, rule_id: str) -> Rule:
            return HUNG if rule_id == "r1" else super().rule(rule_id)

    looks = Both(RULE, RULE, OK).follow(ASKED, replace(ASKED, rse="B_DATA", rule="r2"))
    assert [one.state for one in looks[-1]] == [STUCK, HERE]


@pytest.mark.parametrize(
    ("state", "told"),
    [("WAITING_APPROVAL", "the rule is waiting for approval"), ("SUSPENDED", "is suspended")],
)
def test_rules_that_people_hold_are_stuck(state: str, told: str) -> None:
    looks = Played(replace(RULE, state=state)).follow()
    assert looks[-1][0].state == STUCK
    assert told in looks[-1][0].reason


def test_a_rule_is_read_from_a_row() -> None:
    row = {
        "id": "r1",
        "rse_expression": "A_DATA",
        "account": "me",
        "state": "STUCK",
        "locks_ok_cnt": 1,
        "locks_replicating_cnt": 0,
        "locks_stuck_cnt": 1,
        "error": "RequestErrMsg.TRANSFER_FAILED:Run: [FATAL]\n Socket timeout",
        "expires_at": "Thu, 01 Jan 1970 00:01:00 UTC",
    }
    found = rule_of(row)
    assert (found.error, found.ends) == ("Run: [FATAL] Socket timeout", 60.0)
    assert rule_of(row | {"expires_at": None, "error": None}).ends is None


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (rucios.DataIdentifierNotFound("no such"), Absent, "no such"),
        (rucios.DuplicateRule("twice"), Exists, "twice"),
        (rucios.InsufficientAccountLimit("full"), Denied, "full"),
        (rucios.InvalidRSEExpression("(("), NoStorage, "(("),
        (rucios.InvalidObject("no activity"), ConfigError, "no activity"),
        (rucios.ConfigNotFound("none"), ConfigError, "TREEHAMMER_RUCIO_CONFIG"),
        (rucios.CannotAuthenticate("who"), ConfigError, "does not let me in"),
        (rucios.ServerConnectionException("down"), CatalogueError, "does not answer"),
        (rucios.RucioException("odd"), CatalogueError, "RucioException: "),
    ],
)
def test_what_rucio_says_is_told_as_an_error_of_ours(
    error: Exception, kind: type[Exception], told: str
) -> None:
    settings = config.load({}, environ={"TREEHAMMER_RUCIO_ACCOUNT": "me"})
    found = translated(error, settings)
    assert isinstance(found, kind)
    assert told in str(found)


def test_a_mistake_of_our_own_stays_what_it_is() -> None:
    error = KeyError("x")
    assert translated(error, config.load({}, environ={})) is error


def test_calls_are_tried_again_where_that_can_help(tmp_path: Path) -> None:
    waited: list[float] = []
    rucio = Rucio(config.load({"cache_dir": tmp_path}, environ={}), sleep=waited.append)
    answers: list[Any] = [rucios.ServiceUnavailable("wait"), rucios.DatabaseException("wait"), "me"]

    class Client:
        @property
        def account(self) -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return str(answer)

    vars(rucio)["_client"] = Client()
    assert rucio.account == "me"
    assert waited == [1.0, 4.0]


def test_without_a_rucio_cfg_it_is_said_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUCIO_CONFIG", "")  # so that it is restored afterwards
    for path, told in ((tmp_path / "none.cfg", "none.cfg"), (tmp_path / "empty.cfg", "empty.cfg")):
        (tmp_path / "empty.cfg").write_text("[client]\n")
        settings = config.load({"cache_dir": tmp_path, "rucio_config": path}, environ={})
        with pytest.raises(ConfigError, match=told):
            Rucio(settings).account  # noqa: B018


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("root://h:1094//store/x", "root://h:1094//store/x"),
        ("davs://h:443/store/x", "https://h:443/store/x"),
        ("file://localhost:0/store/x", "/store/x"),
    ],
)
def test_urls_are_told_as_root_opens_them(url: str, opened: str) -> None:
    assert url_for_root(url) == opened


def test_a_replica_is_behind_another_prefix() -> None:
    one = Replica(
        "A", "A_DATA", "f", "root://a//store/rucio/s/12/34/f", 1, "0" * 8, path="s/12/34/f"
    )
    pinned = "root://door//store/test/xrootd/A/store/rucio"
    assert one.behind(pinned) == one.behind(pinned + "/") == f"{pinned}/s/12/34/f"


def test_what_one_storage_has_taken_is_not_written_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[tuple[str, str]] = []

    def bring_file(file: DidFile, path: Path, rse: str, *_: object) -> None:
        if (file.name, rse) == ("two", "A"):
            raise CatalogueError("the disk is full")
        written.append((file.name, rse))

    class Quotas:
        def quotas(self) -> dict[str, Quota]:
            return {"SMALL": Quota(1, 0), "A": Quota(100, 0)}

    monkeypatch.setattr(placing, "_bring_file", bring_file)
    missing = [(DidFile(name, 1, "0" * 8), Path(name)) for name in ("one", "two", "three")]
    through = [Rse(name, "", "DISK", name != "SHUT", False) for name in ("SHUT", "SMALL", "A", "B")]
    rucio = cast(Rucio, Quotas())
    assert placing._upload(missing, through, rucio, silent) == "B"
    assert written == [("one", "A"), ("two", "B"), ("three", "B")]
    with pytest.raises(CatalogueError) as refused:
        placing._upload(missing, through[:3], rucio, silent)
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == [
        "SHUT: takes nothing now",
        "SMALL: our quota has no room for 3 bytes more",
        "A: the disk is full",
    ]
