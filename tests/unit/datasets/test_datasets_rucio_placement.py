"""Polling of replication rules and translation of errors, with a scripted Rucio."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rucio.common import exception as rucios

from treehammer import config
from treehammer.collectors.storage_access import normalize_url
from treehammer.datasets.manifest import Replica
from treehammer.datasets.rucio import rucio_datasets
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    AccountQuota,
    DidFile,
    ReplicationRule,
    Rse,
    RseExpressionError,
    RucioDeniedError,
    RucioDuplicateError,
    RucioNotFoundError,
    parse_rule,
    translate_error,
)
from treehammer.datasets.rucio.rucio_datasets import (
    COMPLETE,
    COPYING,
    DENIED,
    STUCK,
    WAITING,
    ReplicationStatus,
    poll_replication,
)
from treehammer.errors import CatalogueError, ConfigError
from treehammer.text_formatting import no_progress

RULE = ReplicationRule("r1", "A_DATA", "me", "REPLICATING", 0, 2, 0, "", None)
OK = replace(RULE, state="OK", locks_ok=2, locks_copying=0)
HUNG = replace(RULE, state="STUCK", locks_copying=0, locks_stuck=2, error="Socket timeout")
SPOILT = replace(HUNG, error="SOURCE CHECKSUM mismatch")
ASKED = ReplicationStatus("A", "A_DATA", files_total=2, rule_id="r1")


class Played:
    """Scripted Rucio that repeats its last answer; sleeping advances its clock."""

    def __init__(self, *answers: ReplicationRule | None, may_boost: bool = True) -> None:
        self.answers = list(answers)
        self.may_boost = may_boost
        self.boosts: list[float] = []
        self.now = 0.0

    def fetch_rule(self, rule_id: str) -> ReplicationRule:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise RucioNotFoundError(f"no rule {rule_id}")
        return answer

    def boost_rule(self, rule_id: str) -> None:
        if not self.may_boost:
            raise RucioDeniedError("not you")
        self.boosts.append(self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(
        self, *standings: ReplicationStatus, patience_s: float = 100.0
    ) -> list[list[ReplicationStatus]]:
        rucio = cast(RucioClient, self)
        looks = poll_replication(
            standings or [ASKED], rucio, patience_s, sleep=self.sleep, clock=lambda: self.now
        )
        return [list(look) for look in looks]


def test_poll_replication_ends_when_all_files_are_complete() -> None:
    looks = Played(
        replace(RULE, locks_copying=0), RULE, replace(RULE, locks_ok=1, locks_copying=1), OK
    ).follow()
    assert [look[0].state for look in looks] == [WAITING, COPYING, COPYING, COMPLETE]
    assert [look[0].files_complete for look in looks] == [0, 0, 1, 2]


def test_stuck_rules_are_boosted_with_growing_pauses() -> None:
    rucio = Played(HUNG)
    looks = rucio.follow(patience_s=300)
    assert looks[-1][0] == replace(ASKED, state=STUCK, reason="Socket timeout")
    assert len(rucio.boosts) == 4
    pauses = [b - a for a, b in zip(rucio.boosts, rucio.boosts[1:], strict=False)]
    assert pauses == sorted(pauses)
    assert 300 <= rucio.now < 330


def test_alternating_stuck_rule_times_out() -> None:
    rucio = Played(*[RULE, HUNG] * 100)
    assert rucio.follow()[-1][0].state == STUCK
    assert rucio.now < 200


@pytest.mark.parametrize("rucio", [Played(SPOILT), Played(HUNG, may_boost=False)])
def test_hopeless_rules_are_not_boosted(rucio: Played) -> None:
    assert rucio.follow()[-1][0].state == STUCK
    assert not rucio.boosts


def test_denied_and_deleted_rules_end_polling() -> None:
    refused = replace(ASKED, state=DENIED, reason="no quota", rule_id="")
    (look,) = Played(None).follow(ASKED, refused)
    assert [status.state for status in look] == [DENIED, DENIED]
    assert [status.reason for status in look] == ["its rule was deleted", "no quota"]


def test_stuck_rule_does_not_block_others() -> None:
    class Both(Played):
        def fetch_rule(self, rule_id: str) -> ReplicationRule:
            return HUNG if rule_id == "r1" else super().fetch_rule(rule_id)

    looks = Both(RULE, RULE, OK).follow(
        ASKED, replace(ASKED, rse="B_DATA", rule_id="r2"), patience_s=0
    )
    assert [status.state for status in looks[-1]] == [STUCK, COMPLETE]


@pytest.mark.parametrize(
    ("state", "told"),
    [("WAITING_APPROVAL", "the rule is waiting for approval"), ("SUSPENDED", "is suspended")],
)
def test_suspended_rules_are_stuck(state: str, told: str) -> None:
    looks = Played(replace(RULE, state=state)).follow()
    assert looks[-1][0].state == STUCK
    assert told in looks[-1][0].reason


def test_parse_rule_converts_row() -> None:
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
    rule = parse_rule(row)
    assert (rule.error, rule.expires_at) == ("Run: [FATAL] Socket timeout", 60.0)
    assert parse_rule(row | {"expires_at": None, "error": None}).expires_at is None


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (rucios.DataIdentifierNotFound("no such"), RucioNotFoundError, "no such"),
        (rucios.DuplicateRule("twice"), RucioDuplicateError, "twice"),
        (rucios.InsufficientAccountLimit("full"), RucioDeniedError, "full"),
        (rucios.InvalidRSEExpression("(("), RseExpressionError, "(("),
        (rucios.InvalidObject("no activity"), ConfigError, "no activity"),
        (rucios.ConfigNotFound("none"), ConfigError, "TREEHAMMER_RUCIO_CONFIG"),
        (rucios.CannotAuthenticate("who"), ConfigError, "does not let me in"),
        (rucios.ServerConnectionException("down"), CatalogueError, "does not answer"),
        (rucios.RucioException("odd"), CatalogueError, "RucioException: "),
    ],
)
def test_rucio_exceptions_are_translated(
    error: Exception, kind: type[Exception], message: str
) -> None:
    settings = config.load_settings({}, environ={"TREEHAMMER_RUCIO_ACCOUNT": "me"})
    translated = translate_error(error, settings)
    assert isinstance(translated, kind)
    assert message in str(translated)


def test_unknown_exceptions_are_not_translated() -> None:
    error = KeyError("x")
    assert translate_error(error, config.load_settings({}, environ={})) is error


def test_transient_errors_are_retried(tmp_path: Path) -> None:
    waited: list[float] = []
    rucio = RucioClient(
        config.load_settings({"cache_dir": tmp_path}, environ={}), sleep=waited.append
    )
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


def test_missing_rucio_cfg_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUCIO_CONFIG", "")  # restores the variable after the test
    for path, told in ((tmp_path / "none.cfg", "none.cfg"), (tmp_path / "empty.cfg", "empty.cfg")):
        (tmp_path / "empty.cfg").write_text("[client]\n")
        settings = config.load_settings({"cache_dir": tmp_path, "rucio_config": path}, environ={})
        with pytest.raises(ConfigError, match=told):
            RucioClient(settings).account  # noqa: B018


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("root://h:1094//store/x", "root://h:1094//store/x"),
        ("davs://h:443/store/x", "https://h:443/store/x"),
        ("file://localhost:0/store/x", "/store/x"),
    ],
)
def test_urls_are_converted_for_root(url: str, opened: str) -> None:
    assert normalize_url(url) == opened


def test_replica_url_at_another_prefix() -> None:
    replica = Replica(
        "A", "A_DATA", "f", "root://a//store/rucio/s/12/34/f", 1, "0" * 8, path="s/12/34/f"
    )
    pinned = "root://door//store/test/xrootd/A/store/rucio"
    assert (
        replica.url_at_prefix(pinned)
        == replica.url_at_prefix(pinned + "/")
        == f"{pinned}/s/12/34/f"
    )


def test_files_are_written_to_one_storage_only(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []

    def bring_file(file: DidFile, path: Path, rse: str, *_: object) -> None:
        if (file.name, rse) == ("two", "A"):
            raise CatalogueError("the disk is full")
        written.append((file.name, rse))

    class Quotas:
        def list_quotas(self) -> dict[str, AccountQuota]:
            return {"SMALL": AccountQuota(1, 0), "A": AccountQuota(100, 0)}

    monkeypatch.setattr(rucio_datasets, "_upload_file", bring_file)
    missing = [(DidFile(name, 1, "0" * 8), Path(name)) for name in ("one", "two", "three")]
    through = [Rse(name, "", "DISK", name != "SHUT", False) for name in ("SHUT", "SMALL", "A", "B")]
    rucio = cast(RucioClient, Quotas())
    assert rucio_datasets._upload_files(missing, through, rucio, no_progress) == "B"
    assert written == [("one", "A"), ("two", "B"), ("three", "B")]
    with pytest.raises(CatalogueError) as refused:
        rucio_datasets._upload_files(missing, through[:3], rucio, no_progress)
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == [
        "SHUT: accepts no files now",
        "SMALL: the account's quota has no room for 3 bytes more",
        "A: the disk is full",
    ]
