"""Rules of the Oracle lint, and the schema's compliance with them."""

from __future__ import annotations

import pytest
from oracle_lint import LINT_RULES, MAX_KEY_BYTES, MAX_NAME_CHARS, find_problems, key_widths
from sqlalchemy.dialects import oracle
from sqlalchemy.schema import CreateIndex, CreateTable

from treehammer.sql.core.schema import metadata

#: Rule -> statements that it must reject.
BAD = {
    "foreign_keywords": [
        "SELECT a FROM t LIMIT 1",
        "SELECT count(*) FILTER (WHERE a > 1) FROM t",
        "CREATE TABLE t (a BOOLEAN)",
        "SELECT a FROM t WHERE b = TRUE",
        "SELECT a FROM t WHERE b IS NOT false",
        "SELECT a FROM t EXCEPT SELECT a FROM u",
        "INSERT INTO t (a) VALUES (:a) ON CONFLICT DO NOTHING",
        "DROP TABLE IF EXISTS t",
        "SELECT a::text FROM t",
        "SELECT a FROM t;",
        "WITH RECURSIVE t AS (SELECT a FROM u) SELECT a FROM t",
    ],
    "exists_as_value": [
        "SELECT EXISTS (SELECT a FROM t) FROM DUAL",
        "SELECT NOT (EXISTS (SELECT a FROM t)) FROM DUAL",
    ],
    "numeric_conditions": [
        "SELECT a FROM t WHERE a IS 1",
        "SELECT a FROM t WHERE a IS NOT 0",
        "SELECT a FROM t WHERE 1",
        "SELECT a FROM t WHERE b = :b AND 0",
        "SELECT job_id FROM measurement WHERE measurement.plausible",
        "SELECT job_id FROM measurement WHERE NOT plausible",
        "SELECT CASE WHEN (measurement.plausible) THEN :a ELSE :b END FROM measurement",
    ],
    "table_alias_with_as": [
        "SELECT x.a FROM t AS x",
        "SELECT x.a FROM t JOIN u AS x ON x.a = t.a",
        "SELECT x.a FROM (SELECT a FROM t) AS x",
    ],
    "multi_row_values": ["INSERT INTO t (a, b) VALUES (:a, :b), (:c, :d)"],
    "group_by_alias": [
        "SELECT a AS x, count(*) AS n FROM t GROUP BY x",
        "SELECT a, b, count(*) FROM t GROUP BY a, 2",
    ],
    "offset_clauses": ["SELECT a FROM t OFFSET 5"],
    "identifier_lengths": [
        'SELECT "a" FROM t',
        f"SELECT {'a' * (MAX_NAME_CHARS + 1)} FROM t",
        f"SELECT a FROM t WHERE a = :{'a' * 129}",
        "SELECT a FROM t WHERE a = :level",
        "INSERT INTO t (a) VALUES (:file)",
        "SELECT t.number FROM t",
        "SELECT a AS size FROM t",
        "CREATE TABLE session (a NUMBER(1))",
    ],
    "column_counts": [
        "CREATE TABLE t (a NUMBER(1), level NUMBER(1))",
        "CREATE TABLE t (a DATE)",
        "CREATE TABLE t (a TEXT, CONSTRAINT pk_t PRIMARY KEY (a))",
        "CREATE TABLE t (a DOUBLE PRECISION)",
        "CREATE TABLE t (a TIMESTAMP)",
        "ALTER TABLE t ADD a BIGINT",
        "ALTER TABLE t MODIFY a JSON",
        f"CREATE TABLE t ({', '.join(f'c{n} NUMBER(1)' for n in range(1001))})",
    ],
    "text_lengths": [
        "CREATE TABLE t (a VARCHAR2)",
        "CREATE TABLE t (a VARCHAR2(10))",
        "CREATE TABLE t (a VARCHAR2(4001 BYTE))",
        "CREATE TABLE t (a VARCHAR2(4000 CHAR))",
    ],
    "foreign_ddl": [
        "ALTER TABLE t ADD COLUMN a NUMBER(1)",
        "ALTER TABLE t ALTER COLUMN a NUMBER(1)",
    ],
    "empty_strings": ["SELECT a FROM t WHERE a = ''"],
    "list_lengths": [
        f"SELECT a FROM t WHERE a IN ({', '.join(f':a{n}' for n in range(1001))})",
        f"SELECT a FROM t WHERE {' OR '.join(f'a = :a{n}' for n in range(65_536))}",
    ],
    "select_without_from": ["SELECT 1", "SELECT a FROM t WHERE a = (SELECT 1)"],
    "returning_clauses": [
        "INSERT INTO t (a) VALUES (:a) RETURNING t.a",
        "INSERT INTO t (a) VALUES (:many) RETURNING t.a INTO :b",
    ],
    "joined_updates": [
        "UPDATE t SET a = u.a FROM u WHERE u.b = t.b",
        "DELETE FROM t USING u WHERE u.b = t.b",
    ],
    "unknown_functions": ["SELECT strftime(a) FROM t", "SELECT group_concat(a) FROM t"],
    "lob_comparisons": [
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt = :a",
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt IN (:a, :b)",
        "SELECT log_excerpt, count(*) FROM measurement GROUP BY measurement.log_excerpt",
        "SELECT job_id FROM measurement ORDER BY measurement.log_excerpt",
        "SELECT DISTINCT measurement.log_excerpt FROM measurement",
        "UPDATE measurement SET implausible_reasons=CASE WHEN (implausible_reasons IS NULL) THEN :a "
        "ELSE implausible_reasons || :b END",
    ],
}


@pytest.mark.parametrize(
    ("rule", "statement"),
    [pytest.param(r, s, id=f"{r}-{n}") for r, some in BAD.items() for n, s in enumerate(some)],
)
def test_rule_finds_bad_statement(rule: str, statement: str) -> None:
    found = find_problems(statement, 2 if ":many" in statement else 1)
    assert [one for one in found if one.startswith(f"{rule}:")], found


def test_every_rule_has_bad_examples() -> None:
    assert {rule.__name__ for rule in LINT_RULES} == BAD.keys()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT a FROM t ORDER BY t.a NULLS FIRST FETCH FIRST 1 ROWS ONLY",
        "SELECT CASE WHEN (EXISTS (SELECT b FROM u)) THEN 1 ELSE 0 END FROM DUAL",
        "SELECT job_id FROM measurement WHERE measurement.plausible = 1 AND 1 = 1",
        "SELECT a FROM t WHERE a BETWEEN :a AND 1",
        "SELECT x.a AS y, count(*) AS n FROM (SELECT a FROM t) x GROUP BY x.a",
        "SELECT t.day AS day, count(*) FROM t GROUP BY t.day",
        'INSERT INTO t (a) VALUES (:"number")',
        "CREATE TABLE t (a VARCHAR2(128 CHAR) NOT NULL, b VARCHAR2(4000 BYTE), c SMALLINT)",
        "UPDATE measurement SET log_excerpt=:a WHERE measurement.log_excerpt IS NOT NULL",
        "SELECT job_id FROM measurement WHERE measurement.log_excerpt LIKE :a ESCAPE '\\'",
        "SELECT inventory.id FROM inventory ORDER BY inventory.id",
    ],
)
def test_good_statements_pass(statement: str) -> None:
    assert find_problems(statement) == []


def schema_statements() -> list[str]:
    """Compile the statements that create the schema on Oracle."""
    dialect = oracle.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    dialect.supports_native_boolean = False  # as before 23ai
    items: list[CreateTable | CreateIndex] = [
        *(CreateTable(table) for table in metadata.sorted_tables),
        *(CreateIndex(index) for table in metadata.sorted_tables for index in table.indexes),
    ]
    return [" ".join(str(item.compile(dialect=dialect)).split()) for item in items]


def test_schema_passes_lint() -> None:
    assert {
        text[:200]: find_problems(text) for text in schema_statements() if find_problems(text)
    } == {}


def test_index_keys_fit_block() -> None:
    found = key_widths(schema_statements())
    assert len(found) > 20
    assert max(found.values()) <= MAX_KEY_BYTES, found


def test_too_wide_index_is_found() -> None:
    columns = "a VARCHAR2(4000 BYTE), b VARCHAR2(1000 CHAR), c NUMBER(19), d CLOB"
    key = "CONSTRAINT pk_t PRIMARY KEY (c)"
    found = key_widths(
        [
            f"CREATE TABLE t ({columns}, {key})",
            "CREATE INDEX narrow ON t (a, c)",
            "CREATE INDEX wide ON t (a, b)",
            "CREATE INDEX long ON t (d)",
            "ALTER TABLE t MODIFY a VARCHAR2(64 CHAR)",
            "CREATE INDEX later ON t (a, b)",
        ]
    )
    assert found["PK_T"] < found["NARROW"] < MAX_KEY_BYTES < found["WIDE"] < found["LONG"]
    assert found["LATER"] < MAX_KEY_BYTES
