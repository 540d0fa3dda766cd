"""Table of database error messages with their meanings and remedies."""

from __future__ import annotations

from treehammer.sql.core.measurement_columns import DAMAGED_VALUE

#: Seconds that a writer waits for another writer before it fails.
BUSY_SECONDS = 30.0

_COMMITTED_INTACT = "what was committed before is intact."
_CHECK_HINT = "Run: treehammer db check"
#: Remedy for missing or old programs of PostgreSQL.
CLIENT_HINT = (
    "Install PostgreSQL's client programs, of the server's version or later "
    "(Debian: apt install postgresql-client)."
)

# Meanings and remedies that several kinds of databases share.
_LOCKED = (
    f"another process held the database for more than {BUSY_SECONDS:.0f} s",
    "Nothing was written. Run the command again when the other one has ended.",
)
# The database has the right revision but an incomplete schema.
_SCHEMA_INCOMPLETE = ("the database lacks something that this version needs", _CHECK_HINT)
_CONNECTION_LOST = (
    "the connection to the server was lost",
    f"Run the command again when the server is back; {_COMMITTED_INTACT}",
)
_NO_ANSWER = (
    "the server does not answer",
    "Check that it runs, and host and port in the URL.",
)

_DAMAGED_VALUE_HINT = (DAMAGED_VALUE, "a value is not what was written", _CHECK_HINT)

#: SQLSTATE of an error of operation by which PostgreSQL refuses content.
NAME_TOO_LONG = "54000"
_CREDENTIALS_HINT = (
    "Put it into ~/.pgpass, the file that passfile= names, or PGPASSWORD (or into the URL, where "
    "others may read it). Such a file counts only if nobody else may read it, by the very user, host "
    "and port of the URL. A role that has expired is refused by the same words."
)

# Parts of SQLite's messages, separated by |, their meaning and remedy.
_SQLITE_HINTS = (
    ("locked", *_LOCKED),
    (
        "full",
        "there is no room left to write",
        "Free space where the database lies and run the command again; "
        "what was recorded before is intact.",
    ),
    (
        "disk i/o",
        "the system refused to write or read the file",
        "Check space, quota, health of the disk and ulimit -f, then run the command again; "
        "what was committed before is intact.",
    ),
    (
        "readonly",
        "the database may not be written",
        "Check the permissions of the file and its folder.",
    ),
    (
        "unable to open",
        "the database cannot be opened",
        "Check that its folder exists and is yours to write, or give another with --database.",
    ),
    (
        "malformed|could not decode|can't decode",
        "the database is damaged",
        "Put it back from a backup, or move it away and run 'treehammer collect': "
        "the records of jobs stay in the spool.",
    ),
    ("no such table|no such column|has no column", *_SCHEMA_INCOMPLETE),
    (
        "not a database",
        "this file is not an SQLite database",
        "Check the path given with --database.",
    ),
)

# Messages of PostgreSQL's server and libpq; the first match counts.
_POSTGRESQL_HINTS = (
    ("lock timeout|sqlstate 55p03", *_LOCKED),
    (
        "statement pooling mode",
        "the pooler in front of the server allows no transactions",
        "Have its pool_mode set to transaction or session.",
    ),
    (
        "unsupported startup parameter",
        "the pooler in front of the server does not pass on a parameter of the URL",
        "Leave it out; a schema of its own can be given by ALTER ROLE NAME SET search_path = NAME.",
    ),
    (
        "valid client certificate",
        "the server wants a certificate of the user",
        "Name it in the URL, ?sslcert=FILE&sslkey=FILE, or put it into ~/.postgresql.",
    ),
    (
        "root certificate file",
        "there is nothing to know the server's certificate by",
        "Name the file of its authority in the URL, ?sslrootcert=FILE, or trust those that this "
        "machine does: ?sslrootcert=system.",
    ),
    (
        "certificate verify failed",
        "the server's certificate has expired, or is signed by somebody else than sslrootcert names",
        "Check that file, and the clock of this machine; the server's administrator has the right one.",
    ),
    (
        "does not match host name",
        "the server's certificate is that of another host",
        "Give the host in the URL the name that the certificate is made for.",
    ),
    (
        "server does not support ssl",
        "the server does not speak TLS, which sslmode asks for",
        "Have ssl switched on at the server; sslmode=disable sends all in the clear.",
    ),
    ("password authentication failed", "the server refuses the password", _CREDENTIALS_HINT),
    ("no password supplied", "the server wants a password", _CREDENTIALS_HINT),
    (
        "authentication failed|not permitted to log in|no pg_hba.conf entry|hba.conf rejects",
        "the server does not let this user in from here",
        "Check user, host and sslmode in the URL; the server's pg_hba.conf says who may enter, and how.",
    ),
    (
        "no such database",
        "the pooler in front of the server has no such database",
        "Check the database in the URL; PgBouncer lists its own under [databases].",
    ),
    (
        "permission denied for schema|must be owner of",
        "this user may not make tables here, or change them",
        "Have the right given, GRANT CREATE ON SCHEMA public TO USER, or run the command as the "
        "user who owns the database and its tables.",
    ),
    (
        "permission denied|sqlstate 42501",
        "this user lacks a right in the database",
        "Have it given by the owner: GRANT CONNECT of the database; of the tables, GRANT SELECT to "
        "read, INSERT, UPDATE and DELETE to write.",
    ),
    (
        "read-only transaction|read-write mode|sqlstate 25006",
        "the database may not be written",
        "Give the primary server's address: this is a copy of it, or writing was switched off.",
    ),
    (
        "too many|remaining connection slots|query_wait_timeout",
        "the server, or the pooler in front of it, has no connection left",
        "Try again later, check the server behind a pooler, or have max_connections or default_pool_size "
        "raised: an export takes two at once.",
    ),
    (
        "version mismatch|unsupported version",  # of pg_dump and pg_restore
        "PostgreSQL's programs here are older than the server, or than those that wrote the backup",
        CLIENT_HINT,
    ),
    (
        'no schema has been selected|schema ".*" does not exist',
        "the schema of the tables is missing",
        "Have it made, CREATE SCHEMA NAME AUTHORIZATION USER, or check search_path.",
    ),
    (
        "other objects depend on it",
        "views, or tables of a later version than the backup's, depend on what is to be replaced",
        "Drop such views, and make them again afterwards; recover a backup from before an upgrade into "
        "an empty database, and upgrade that: CREATE DATABASE NAME OWNER USER.",
    ),
    (
        "input file|end of file|uncompress|unexpected block id",  # of pg_restore
        "the backup is incomplete or damaged",
        "Give another one; the database is as it was.",
    ),
    (
        "conflict with recovery|sqlstate 40001",
        "the standby server could not wait until this query ended",
        "Run the command again, or have max_standby_streaming_delay raised there.",
    ),
    (
        "statement timeout|transaction timeout|idle-(in-transaction|session) timeout|temp_file_limit|"
        "sqlstate 57014|sqlstate 25p03|sqlstate 25p04|sqlstate 53400",
        "the server ended a statement or transaction by a limit, or by its administrator's order",
        "Have it allow more: ALTER ROLE NAME SET statement_timeout = 0, or the limit named here "
        "(temp_file_limit: -1).",
    ),
    (
        "no space left|could not write init file|disk quota|sqlstate 53100",
        "there is no room left to write on the server",
        f"Have space made there and run the command again; {_COMMITTED_INTACT}",
    ),
    (
        f"index row|sqlstate {NAME_TOO_LONG}",
        "a name is longer than PostgreSQL can index (2700 bytes)",
        "Shorten the names of sites, tests and axes.",
    ),
    (
        "server closed the connection|terminating connection|connection is lost|"
        "connection is closed|consuming input failed|no connection to the server|"
        "could not receive data|could not send data|server conn crashed|sqlstate 57p0",
        *_CONNECTION_LOST,
    ),
    (
        "connection refused|no such file or directory|timeout expired|connection timeout|"
        "could not translate host name|failed to resolve host|no route to host|"
        "network is unreachable|server login has been failing|starting up|shutting down|"
        "in recovery mode|not (yet )?accepting connections",
        *_NO_ANSWER,
    ),
    (
        'role ".*" does not exist|no such user',
        "the server does not know this user",
        "Check the user in the URL, or have one made: CREATE ROLE NAME LOGIN. A backup needs the roles "
        "to which it grants rights.",
    ),
    (
        'database ".*" does not exist',
        "the server has no such database",
        "Have one made that is yours: CREATE DATABASE NAME OWNER USER ENCODING 'UTF8'.",
    ),
    ("does not exist|sqlstate 42p01|sqlstate 42703", *_SCHEMA_INCOMPLETE),
)
# Messages of Oracle's server (ORA) and of python-oracledb (DPY).
_ORACLE_HINTS = (
    ("ora-30006|ora-00054|ora-00060", *_LOCKED),
    (
        "ora-01017|dpy-4001|ora-01005|dpy-3001",
        "the server refuses the user's name or password",
        "Check both; the URL holds them (oracle://USER:PASSWORD@HOST/?service_name=NAME). Put "
        "it into TREEHAMMER_DATABASE or a file that you alone may read.",
    ),
    (
        "ora-28000|ora-28001|dpy-3015",
        "this user's account is locked, or its password has expired or is kept in an old way (10G)",
        "Have it renewed: ALTER USER NAME IDENTIFIED BY … ACCOUNT UNLOCK.",
    ),
    (
        "dpy-3010",
        "the server is too old",
        "Use a server of 19c or later.",
    ),
    (
        "dpy-6001|ora-12514|dpy-6003|ora-12505|dpy-4027|dpy-4000|dpy-4026|ora-12154",
        "the URL names no service of this server",
        "Give one that 'lsnrctl services' lists there, oracle://USER:PASSWORD@HOST/?service_name=NAME "
        "(port 1521 if none is named). A name of tnsnames.ora needs ?config_dir=FOLDER.",
    ),
    (
        "ora-00018|ora-00020|ora-12516|ora-12518|ora-12519|ora-12520",
        "the server has no connection left",
        "Try again later, or have PROCESSES and SESSIONS raised.",
    ),
    (
        "dpy-6000|dpy-6002|dpy-6005|ora-12541|ora-12170|ora-01033|ora-01034|ora-01089|"
        "name or service not known|temporary failure in name resolution|"
        "no address associated",
        *_NO_ANSWER,
    ),
    (
        "ora-03113|ora-03114|ora-03135|ora-00028|ora-02396|ora-12537|ora-12547|dpy-4011|"
        "dpy-1001|dpy-4024",
        *_CONNECTION_LOST,
    ),
    (
        "ora-01653|ora-01654|ora-01691|ora-01658|ora-01652|ora-19809|ora-01536|ora-01950",
        "there is no room left to write on the server, or none for this user",
        "Have space added (ALTER TABLESPACE … ADD DATAFILE) or given (ALTER USER NAME QUOTA UNLIMITED ON "
        f"TABLESPACE) and run the command again; {_COMMITTED_INTACT}",
    ),
    (
        "ora-01555",
        "the server kept the old state of the database for less time than reading took",
        "Run the command again when less is written, or have UNDO_RETENTION raised.",
    ),
    (
        "ora-12899|ora-01461|ora-12911",
        "a text is longer than its column on Oracle (4000 bytes)",
        "Shorten it: letters beyond ASCII take two to four bytes.",
    ),
    (
        "ora-01450",
        "an index is wider than this tablespace's blocks allow",
        "Use a tablespace with blocks of 8 kB or more.",
    ),
    (
        "ora-01031|ora-01045",
        "this user may not do that",
        "Have the right given: GRANT CREATE SESSION, CREATE TABLE TO NAME makes its own tables.",
    ),
    (
        "ora-00942",
        "a table is not there, or this user may not see it",
        "Use the user who owns the tables: Treehammer looks for them under the user's own name. "
        + _CHECK_HINT,
    ),
    ("ora-00904", *_SCHEMA_INCOMPLETE),
    (
        "ora-16000",
        "the database may not be written",
        "Give the primary server's address: this is a standby, or was opened read only.",
    ),
)
#: Kind of database -> pattern of a message, meaning and remedy; the first match counts.
ERROR_HINTS = {
    "sqlite": (_DAMAGED_VALUE_HINT, *_SQLITE_HINTS),
    "postgresql": (_DAMAGED_VALUE_HINT, *_POSTGRESQL_HINTS),
    "oracle": (_DAMAGED_VALUE_HINT, *_ORACLE_HINTS),
}
