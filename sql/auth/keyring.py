"""Storage of a results service's keys in its database and of the master key in a file."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import ConfigError
from treehammer.sql.auth.access_keys import ROLES, AccessKey, derive_key, fingerprint_master_key
from treehammer.sql.auth.session_table import end_sessions_of_key, load_sessions
from treehammer.sql.auth.tokens import CAMPAIGN, JOB, AccessList
from treehammer.sql.core.rows import AccessKeyRow
from treehammer.sql.core.schema import access_key, access_revocation, campaign, job, measurement
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.engine.row_mapping import fetch_rows
from treehammer.sql.write import audit_trail

# Columns that hold identities of campaigns and jobs.
_SUBJECT_COLUMNS = {
    CAMPAIGN: (campaign.c.id, measurement.c.campaign_id),
    JOB: (job.c.id, measurement.c.job_id),
}


@dataclass(frozen=True)
class Revocation:
    """A campaign or a job whose tokens were revoked at ``revoked_us``."""

    scope: str
    subject: str
    revoked_us: int


class Keyring:
    """Creates, lists and revokes keys in a database of this version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create_key(
        self,
        master: bytes,
        role: str,
        name: str,
        *,
        now_us: int,
        expires_us: int | None = None,
        owner: str = "",
    ) -> AccessKey:
        """Create a key. Its text is not stored.

        Args:
            master: the service's master key.
            role: one of :data:`~treehammer.sql.auth.access_keys.ROLES`.
            name: its holder, for display.
            now_us: the current time.
            expires_us: expiry; None for a key that does not expire.
            owner: group that shares its campaigns; by default the holder alone.

        Raises:
            StoreError: the database cannot be written.
        """
        if role not in ROLES:
            raise ValueError(role)
        key = derive_key(master, secrets.token_hex(6))
        row = AccessKeyRow(
            key.key_id,
            role,
            name,
            now_us,
            expires_us,
            None,
            fingerprint_master_key(master),
            owner or name,
        )
        subject = f"key {row.key_id}, role {role}, for {name}, group {row.owner}"
        with write_transaction(self._engine) as connection:
            connection.execute(sa.insert(access_key), [asdict(row)])
            _record(connection, audit_trail.CREATE_KEY, subject, now_us)
        return key

    def list_keys(self) -> Sequence[AccessKeyRow]:
        """List all keys ever made, oldest first."""
        query = sa.select(access_key).order_by(access_key.c.created_us, access_key.c.key_id)
        with read_transaction(self._engine) as connection:
            return fetch_rows(connection, AccessKeyRow, query)

    def load_access(self) -> AccessList:
        """Load all keys, revocations and sessions from one state of the database."""
        revoked: dict[str, set[str]] = {CAMPAIGN: set(), JOB: set()}
        with read_transaction(self._engine) as connection:
            rows = fetch_rows(connection, AccessKeyRow, sa.select(access_key))
            keys = {row.key_id: row for row in rows}
            columns = access_revocation.c
            for scope, subject in connection.execute(sa.select(columns.scope, columns.subject)):
                revoked[scope].add(subject)
            sessions = load_sessions(connection)
        return AccessList(keys, frozenset(revoked[CAMPAIGN]), frozenset(revoked[JOB]), sessions)

    def revoke_key(self, key_id: str, *, now_us: int) -> bool:
        """Revoke a key with its sessions and all tokens signed with it, immediately and permanently.

        Returns:
            whether it was valid before.

        Raises:
            ConfigError: no such key exists.
        """
        is_key = access_key.c.key_id == key_id
        with write_transaction(self._engine) as connection:
            stored = sa.select(access_key.c.key_id).where(is_key)
            if not is_storable(key_id) or connection.execute(stored).first() is None:
                raise ConfigError(
                    "unknown key",
                    where=f"key {key_id!r}",
                    hint="To list all keys: treehammer token list",
                )
            end_sessions_of_key(connection, key_id)
            change = sa.update(access_key).where(is_key, access_key.c.revoked_us.is_(None))
            was_valid = connection.execute(change.values(revoked_us=now_us)).rowcount > 0
            if was_valid:
                _record(connection, audit_trail.REVOKE_KEY, f"key {key_id}", now_us)
            return was_valid

    def revoke_keys_of(self, masters: Sequence[bytes], *, now_us: int) -> Sequence[str]:
        """Revoke all valid keys derived from these master keys, and return their identities."""
        fingerprints = {fingerprint_master_key(master) for master in masters}
        keys = [
            row.key_id
            for row in self.list_keys()
            if row.revoked_us is None and row.master_key_fingerprint in fingerprints
        ]
        return [key_id for key_id in keys if self.revoke_key(key_id, now_us=now_us)]

    def record_rotation(self, subject: str, *, now_us: int) -> None:
        """Add a rotation of the master key to the audit trail."""
        with write_transaction(self._engine) as connection:
            _record(connection, audit_trail.ROTATE, subject, now_us)

    def list_revocations(self) -> Sequence[Revocation]:
        """List campaigns and jobs whose tokens were revoked, by time."""
        table = access_revocation
        query = sa.select(table.c.scope, table.c.subject, table.c.revoked_us)
        with read_transaction(self._engine) as connection:
            ordered = query.order_by(table.c.revoked_us, table.c.scope, table.c.subject)
            return [Revocation(*row) for row in connection.execute(ordered)]

    def has_subject(self, scope: str, subject: str) -> bool:
        """Return whether a campaign or job, or a measurement of it, has this identity."""
        with read_transaction(self._engine) as connection:
            return any(
                connection.execute(sa.select(sa.func.min(column)).where(column == subject)).scalar()
                for column in _SUBJECT_COLUMNS[scope]
            )

    def revoke_tokens(self, scope: str, subject: str, *, now_us: int) -> bool:
        """Revoke the tokens of a campaign or a job.

        Args:
            scope: :data:`~treehammer.sql.auth.tokens.CAMPAIGN` or :data:`~treehammer.sql.auth.tokens.JOB`.
            subject: its identity, which may be unknown to the database.
            now_us: the current time.

        Returns:
            whether they were valid before.
        """
        columns = access_revocation.c
        stored = sa.select(columns.subject).where(
            columns.scope == scope, columns.subject == subject
        )
        with write_transaction(self._engine) as connection:
            if connection.execute(stored).first() is not None:
                return False
            row = {"scope": scope, "subject": subject, "revoked_us": now_us}
            connection.execute(sa.insert(access_revocation), [row])
            _record(connection, audit_trail.REVOKE_TOKENS, f"{scope} {subject}", now_us)
            return True


def _record(connection: Connection, action: str, subject: str, now_us: int) -> None:
    """Add an entry to the audit trail in the transaction of the change."""
    actor = audit_trail.local_actor()
    audit_trail.add_entries(
        connection, [audit_trail.make_entry(action, actor, subject, now_us=now_us)]
    )
