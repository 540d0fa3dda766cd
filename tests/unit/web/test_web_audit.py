"""Audit trail: keys, refused requests, and following it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_verbs import find_command
from click.testing import CliRunner
from service_thread import StartService, make_body, make_sent_measurement

from treehammer import config
from treehammer.errors import StoreError
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.write import audit_trail
from treehammer.sql.write.store import Store
from treehammer.web.service import middleware
from treehammer.web.service.middleware import AuditEvent, AuditJournal


def read_trail(url: str) -> list[AuditRow]:
    with Store.open(url) as store:
        return store.list_changes()


def make_refused(number: int = 0) -> AuditEvent:
    return AuditEvent("refuse", f"10.0.0.{number}", "", "POST measurements", "a token is required")


def test_keys_and_refusals_are_in_audit_trail(start_service: StartService) -> None:
    with start_service() as service:
        key = service.make_key("read")
        body = make_body([make_sent_measurement()])
        for _ in range(3):
            assert service.post_document(body, key.text).status_code == 403
        assert service.post_document(body, "wrong").status_code == 401
        assert service.post_document(b"{", service.make_key("submit").text).status_code == 400
        # A page opened before sign-in is no attack.
        assert service.client.get("/sites").status_code == 401
        ring = service.open_keyring()
        assert ring.revoke_key(key.key_id, now_us=5)
        assert not ring.revoke_key(key.key_id, now_us=6)
        assert ring.revoke_tokens("campaign", "c1", now_us=7)
        url = service.url
    entries = read_trail(url)
    keys = [(one.action, one.scope) for one in entries if one.action != audit_trail.REFUSE]
    assert keys[:2] == [("revoke tokens", "campaign c1"), ("revoke key", f"key {key.key_id}")]
    assert ("create key", f"key {key.key_id}, role read, for reader, group reader") in keys
    assert len(keys) == 4
    refused = {one.actor: one for one in entries if one.action == audit_trail.REFUSE}
    forbidden = refused[f"key {key.key_id} from 127.0.0.1"]
    assert (forbidden.scope, forbidden.measurements) == ("POST measurements", 3)
    assert "may not upload" in forbidden.reason
    assert refused["127.0.0.1"].measurements == 1
    assert len(refused) == 2


def test_sign_ins_are_in_audit_trail(start_service: StartService) -> None:
    with start_service() as service:
        key = service.make_key("read")
        signed_in = service.client.post("/sign-in", data={"token": key.text, "next": "/"})
        assert signed_in.status_code == 303
        service.client.cookies.update(signed_in.cookies)
        assert service.client.post("/sign-out").status_code == 303
        assert service.client.post("/sign-in", data={"token": "guessed"}).status_code == 401
        url = service.url
    entries = {one.action: one for one in read_trail(url)}
    signed = entries["sign in"]
    assert (signed.actor, signed.scope) == (f"key {key.key_id} from 127.0.0.1", "reader")
    assert entries["sign out"].actor == "127.0.0.1"
    refused = entries["refuse"]
    assert (refused.actor, refused.scope) == ("127.0.0.1", "POST sign-in")


def test_journal_is_bounded_and_keeps_counts_while_database_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "MAX_ENTRIES", 3)
    written: list[AuditRow] = []
    broken = True

    def write(entries: Sequence[AuditRow]) -> None:
        if broken:
            raise StoreError("the disk is full")
        written.extend(entries)

    journal = AuditJournal(write)
    for number in range(10):
        journal.note(make_refused(number))
    asyncio.run(journal.flush())
    journal.note(make_refused(0))
    broken = False
    asyncio.run(journal.flush())
    counts = {one.actor: one.measurements for one in written}
    assert counts == {"10.0.0.0": 2, "10.0.0.1": 1, "10.0.0.2": 1, "other addresses": 7}
    asyncio.run(journal.flush())
    assert len(written) == 4


def test_entry_holds_no_control_characters() -> None:
    entry = audit_trail.make_entry(
        "refuse", "a\x1b[31m", "\0", now_us=1, reason="\ud800" + "x" * 9000
    )
    assert entry.actor == "a\N{REPLACEMENT CHARACTER}[31m"
    assert "\0" not in entry.scope
    assert len(entry.reason.encode()) < 4000


def test_audit_can_be_followed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'results.db'}"
    first = audit_trail.make_entry("create key", "root@vm", "key 1", now_us=1_000_000)
    with Store.open(url) as store:
        store.add_audit_entries([first])
        command = [sys.executable, "-m", "treehammer", "--database", url, "db", "audit"]
        with subprocess.Popen(
            [*command, "--follow", "--json"], stdout=subprocess.PIPE, text=True
        ) as following:
            try:
                assert following.stdout is not None
                assert json.loads(following.stdout.readline())["id"] == first.id
                # Clocks differ: this entry is older than the one before.
                late = audit_trail.make_entry("revoke key", "root@vm", "key 1", now_us=900_000)
                store.add_audit_entries([late])
                assert json.loads(following.stdout.readline())["id"] == late.id
                following.send_signal(2)
                assert following.wait(60) == 130
            finally:
                following.kill()
    settings = config.load_settings({"database": url}, environ={}, folder=tmp_path)
    shown = CliRunner().invoke(
        find_command("db"), ["audit", "--json", "--action", "revoke key"], obj=settings
    )
    assert [row["id"] for row in json.loads(shown.stdout)] == [late.id]
