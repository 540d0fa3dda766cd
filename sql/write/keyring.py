"""Storage of a results service's keys and read sessions in its database, and of the master key in a file.

The first line of the file is the current master key. During a rotation, further lines are the previous
ones, whose keys stay valid.

A browser keeps the random token of its session in a cookie; the database stores only its hash, so that
a copy of the database permits no sign-in. A session permits reading only, and ends with the key that
opened it.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.value_checks import is_storable
from treehammer.collectors.shared_files import DISK_FULL_ERRNOS
from treehammer.errors import ConfigError, StoreError, TokenError
from treehammer.program_output import create_private_file, explain_write_errors, is_private
from treehammer.sql.core.access_keys import (
    CAMPAIGN,
    JOB,
    ROLES,
    AccessGrant,
    AccessKey,
    AccessList,
    MasterKeys,
    derive_key,
    fingerprint_master_key,
    require_unexpired,
    require_valid_key,
)
from treehammer.sql.core.rows import AccessKeyRow, AuditRow, ReadSession, RevocationRow
from treehammer.sql.core.schema import (
    access_key,
    access_revocation,
    campaign,
    job,
    measurement,
    read_session,
)
from treehammer.sql.engine.database_engine import (
    insert_new_rows,
    load_rows,
    read_transaction,
    write_transaction,
)
from treehammer.sql.write import audit_trail
from treehammer.text_formatting import format_time

_TOKEN_BYTES = 32
#: Maximum number of characters of a session token.
MAX_SESSION_TOKEN_LENGTH = 64
#: Sessions of one key; a further sign-in ends the oldest, since all are kept in memory.
MAX_SESSIONS_PER_KEY = 1000
_MASTER_BYTES = 32
#: Maximum number of previous master keys.
MAX_PREVIOUS = 3
# Columns that hold identities of campaigns and jobs.
_SUBJECT_COLUMNS = {
    CAMPAIGN: (campaign.c.id, measurement.c.campaign_id),
    JOB: (job.c.id, measurement.c.job_id),
}


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
            role: one of :data:`~treehammer.sql.core.access_keys.ROLES`.
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
            insert_new_rows(connection, access_key, [row])
            _record(connection, audit_trail.CREATE_KEY, subject, now_us)
        return key

    def list_keys(self) -> Sequence[AccessKeyRow]:
        """List all keys ever made, oldest first."""
        query = sa.select(access_key).order_by(access_key.c.created_us, access_key.c.key_id)
        with read_transaction(self._engine) as connection:
            return load_rows(connection, AccessKeyRow, query)

    def load_access(self) -> AccessList:
        """Load all keys, revocations and sessions from one state of the database."""
        with read_transaction(self._engine) as connection:
            keys = load_rows(connection, AccessKeyRow, sa.select(access_key))
            revoked = load_rows(connection, RevocationRow, sa.select(access_revocation))
            sessions = load_rows(connection, ReadSession, sa.select(read_session))
        return AccessList(
            {row.key_id: row for row in keys},
            frozenset(row.subject for row in revoked if row.scope == CAMPAIGN),
            frozenset(row.subject for row in revoked if row.scope == JOB),
            {session.token_hash: session for session in sessions},
        )

    def revoke_key(self, key_id: str, *, now_us: int) -> bool:
        """Revoke a key with its sessions and all tokens signed with it, immediately and permanently.

        Returns:
            whether it was valid before.

        Raises:
            ConfigError: no such key exists.
        """
        is_key = access_key.c.key_id == key_id
        with write_transaction(self._engine) as connection:
            query = sa.select(access_key.c.key_id).where(is_key)
            if not is_storable(key_id) or connection.execute(query).first() is None:
                raise ConfigError(
                    "unknown key",
                    where=f"key {key_id!r}",
                    hint="To list all keys: treehammer token list",
                )
            connection.execute(sa.delete(read_session).where(read_session.c.key_id == key_id))
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

    def list_revocations(self) -> Sequence[RevocationRow]:
        """List campaigns and jobs whose tokens were revoked, by time."""
        table = access_revocation
        query = sa.select(table).order_by(table.c.revoked_us, table.c.scope, table.c.subject)
        with read_transaction(self._engine) as connection:
            return load_rows(connection, RevocationRow, query)

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
            scope: :data:`~treehammer.sql.core.access_keys.CAMPAIGN` or :data:`~treehammer.sql.core.access_keys.JOB`.
            subject: its identity, which may be unknown to the database.
            now_us: the current time.

        Returns:
            whether they were valid before.
        """
        columns = access_revocation.c
        query = sa.select(columns.subject).where(columns.scope == scope, columns.subject == subject)
        with write_transaction(self._engine) as connection:
            if connection.execute(query).first() is not None:
                return False
            insert_new_rows(connection, access_revocation, [RevocationRow(scope, subject, now_us)])
            _record(connection, audit_trail.REVOKE_TOKENS, f"{scope} {subject}", now_us)
            return True


def _record(connection: Connection, action: str, subject: str, now_us: int) -> None:
    """Add an entry to the audit trail in the transaction of the change."""
    actor = audit_trail.local_actor()
    audit_trail.add_entries(
        connection, [audit_trail.make_entry(action, actor, subject, now_us=now_us)]
    )


def hash_session_token(token: str) -> str:
    """Hash a token for storage. Tokens are random, so that a plain hash cannot be reversed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def verify_session(token: str, access: AccessList, masters: MasterKeys, now_us: int) -> AccessGrant:
    """Verify the token of a session and return its permissions.

    Raises:
        TokenError: the session ended, or its key is no longer valid.
    """
    if len(token) > MAX_SESSION_TOKEN_LENGTH:
        raise TokenError("the session is invalid: sign in again")
    session = access.sessions.get(hash_session_token(token))
    if session is None:
        raise TokenError("the session has ended: sign in again", may_be_new=True)
    if now_us > session.expires_us:
        raise TokenError("the session has expired: sign in again")
    key = require_valid_key(session.key_id, access, masters)
    require_unexpired(key.expires_us, now_us, "the key")
    return AccessGrant(key.role, key.key_id, key.name, key.owner, session.expires_us)


def session_id(session: ReadSession) -> str:
    """Return the name of a session for administrators: the beginning of its hash."""
    return session.token_hash[:12]


class SessionTable:
    """Opens, lists and ends sessions in a database of this version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_session(
        self, grant: AccessGrant, *, address: str, now_us: int, expires_us: int
    ) -> str:
        """Open a session and return its token; delete expired sessions and surplus ones.

        Raises:
            StoreError: the database cannot be written.
        """
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        session = ReadSession(
            hash_session_token(token),
            grant.role,
            grant.name,
            grant.key_id,
            address,
            now_us,
            expires_us,
        )
        table = read_session
        with write_transaction(self._engine) as connection:
            connection.execute(sa.delete(table).where(table.c.expires_us < now_us))
            insert_new_rows(connection, table, [session])
            newest_first = (
                sa.select(table.c.token_hash)
                .where(table.c.key_id == grant.key_id)
                .order_by(table.c.created_us.desc(), table.c.token_hash)
            )
            for surplus in connection.scalars(newest_first).all()[MAX_SESSIONS_PER_KEY:]:
                connection.execute(sa.delete(table).where(table.c.token_hash == surplus))
        return token

    def list_sessions(self, *, now_us: int) -> Sequence[ReadSession]:
        """List the sessions that have not expired, oldest first."""
        columns = read_session.c
        query = sa.select(read_session).where(columns.expires_us >= now_us)
        query = query.order_by(columns.created_us, columns.token_hash)
        with read_transaction(self._engine) as connection:
            return load_rows(connection, ReadSession, query)

    def end_sessions(self, token_hashes: Sequence[str], entries: Sequence[AuditRow] = ()) -> int:
        """End sessions by their hashes, add entries to the audit trail, and return their number."""
        ended = 0
        with write_transaction(self._engine) as connection:
            audit_trail.add_entries(connection, entries)
            for token_hash in token_hashes:
                matching = read_session.c.token_hash == token_hash
                ended += connection.execute(sa.delete(read_session).where(matching)).rowcount
        return ended


def load_master_keys(path: Path, *, create: bool = True) -> MasterKeys:
    """Load the service's master keys; create one if the file does not exist and ``create`` is set.

    Raises:
        ConfigError: they cannot be read or created, other users can read them, or the file is invalid.
        StoreError: the disk is full.
    """
    where = f"service_key_file {path}"
    try:
        if create and not path.exists():
            _create_master_key(path)
        with path.open(encoding="ascii") as stream:
            lines = stream.read(1000).split()
    except OSError as error:
        kind = StoreError if error.errno in DISK_FULL_ERRNOS else ConfigError
        raise kind(f"cannot be read or created ({error.strerror})", where=where) from error
    except UnicodeDecodeError:
        lines = []
    if not is_private(path):
        raise ConfigError(
            "other users can read the master key", where=where, hint=f"Run: chmod 600 {path}"
        )
    masters = _parse_master_keys(lines)
    if not 1 <= len(masters) <= 1 + MAX_PREVIOUS:
        raise ConfigError(
            "this is not a master key",
            where=where,
            hint="Restore it from a backup; a new one would invalidate every key.",
        )
    return MasterKeys(masters[0], masters[1:])


def _parse_master_keys(lines: Sequence[str]) -> list[bytes]:
    """Parse the master keys of a file; return none if a line is not a key."""
    try:
        masters = [bytes.fromhex(line) for line in lines]
    except ValueError:
        return []
    return masters if all(len(master) == _MASTER_BYTES for master in masters) else []


def rotate_master_key(path: Path) -> MasterKeys:
    """Put a new master key before the present ones, and return them.

    Raises:
        ConfigError: the file cannot be read or written, or there are too many previous ones.
    """
    masters = load_master_keys(path, create=False)
    if len(masters.previous) >= MAX_PREVIOUS:
        raise ConfigError(
            f"{len(masters.previous)} previous master keys are still in use",
            where=f"service_key_file {path}",
            hint="End their rotation first: treehammer token rotate-master --finish",
        )
    rotated = MasterKeys(secrets.token_bytes(_MASTER_BYTES), [masters.current, *masters.previous])
    _replace_master_keys(path, rotated)
    return rotated


def forget_previous_master_keys(path: Path) -> None:
    """Keep only the current master key in the file.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    _replace_master_keys(path, MasterKeys(load_master_keys(path, create=False).current))


def describe_key_state(row: AccessKeyRow, masters: MasterKeys | None) -> str:
    """Describe whether a key is valid with the master keys of a service; None without any."""
    if row.revoked_us is not None:
        return f"revoked {format_time(row.revoked_us)[:10]}"
    if masters is None:
        return "master key missing"
    if masters.find(row.master_key_fingerprint) is None:
        return "other master key"
    if row.expires_us is not None and row.expires_us < current_us():
        return "expired"
    is_previous = masters.is_previous(row.master_key_fingerprint)
    return "active, previous master key" if is_previous else "active"


def _create_master_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Linking a complete file is atomic: if two processes do this, one wins and both read its key.
    temporary = _write_beside(path, [secrets.token_bytes(_MASTER_BYTES)])
    try:
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _replace_master_keys(path: Path, masters: MasterKeys) -> None:
    with explain_write_errors(f"service_key_file {path}"):
        _write_beside(path, [masters.current, *masters.previous]).replace(path)


def _write_beside(path: Path, masters: Sequence[bytes]) -> Path:
    """Write master keys durably to a private file in the same folder, and return it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(create_private_file(temporary), "w", encoding="ascii") as stream:
            stream.writelines(f"{master.hex()}\n" for master in masters)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
