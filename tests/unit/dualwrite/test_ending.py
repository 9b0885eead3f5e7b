"""[DW-11] Statements that end the transaction of a block are told from all others, by their words."""

import sqlite3

import pytest

from tallystick.dualwrite.stores.ending import ends_transaction, is_outside_transaction


@pytest.mark.parametrize(
    ("statement", "on_postgresql", "on_mariadb"),
    [
        (" commit;", True, True),
        ("END", True, True),
        ("ROLLBACK", True, True),
        ("rollback and chain", True, True),
        ("ROLLBACK TO SAVEPOINT a", False, False),
        ("rollback work to a", False, False),
        ("PREPARE TRANSACTION 'a'", True, False),
        ("PREPARE plan AS SELECT 1", False, False),
        ("START TRANSACTION", False, True),
        ("BEGIN", False, True),
        ("BEGIN NOT ATOMIC SELECT 1; END", True, True),
        ("SAVEPOINT a", False, False),
        ("", False, False),
        # Behind a comment, or another statement.
        ("/* route:pay */ COMMIT", True, True),
        ("-- pay\nCOMMIT", True, True),
        ("# pay\nCOMMIT", False, True),
        ("/* a /* b */ COMMIT */ SELECT 1", False, True),
        ("/*!50000 COMMIT */", False, True),
        ("/*M! COMMIT */", False, True),
        ("SELECT 1; COMMIT", True, True),
        ("SELECT 1;/**/COMMIT/**/", True, True),
        ("; ;COMMIT", True, True),
        # In what is quoted.
        ("INSERT INTO t VALUES ('COMMIT')", False, False),
        ("INSERT INTO t VALUES ('; COMMIT')", False, False),
        ("INSERT INTO t VALUES (';'';COMMIT')", False, False),
        ('SELECT "; COMMIT" FROM t; SELECT 1', False, False),
        ("SELECT $$; COMMIT$$; SELECT 1", False, False),
        ("SELECT $a$; COMMIT $$;$a$; SELECT 1", False, True),
        (r"SELECT E'\'; COMMIT'; SELECT 1", False, False),
        (r"SELECT '\'; COMMIT; SELECT '1'", True, False),
        ("SELECT 1 -- ; COMMIT\n; SELECT 2", False, False),
        ("SELECT 5 --1; COMMIT", False, True),
        # What commits by itself.
        ("CREATE TABLE t (n INT)", False, True),
        ("CREATE TEMPORARY TABLE t (n INT)", False, False),
        ("CREATE OR REPLACE TEMPORARY TABLE t (n INT)", False, False),
        ("TRUNCATE t", False, True),
        ("/* c */ ANALYZE TABLE t", False, True),
        ("ANALYZE NO_WRITE_TO_BINLOG TABLE t", False, True),
        ("ANALYZE SELECT 1", False, False),
        ("OPTIMIZE TABLE t", False, True),
        ("REPAIR LOCAL TABLE t", False, True),
        ("CHECK TABLE t", False, True),
        ("CACHE INDEX t IN c", False, True),
        ("LOAD INDEX INTO CACHE t", False, True),
        ("LOAD DATA INFILE 'a' INTO TABLE t", False, False),
        ("FLUSH TABLES", False, True),
        ("RESET QUERY CACHE", False, True),
        ("CHANGE MASTER TO MASTER_HOST='a'", False, True),
        ("XA START 'a'", False, True),
        ("SHUTDOWN", False, True),
        ("SET PASSWORD = 'a'", False, True),
        ("SET autocommit=1", False, True),
        ("SET @@session.autocommit = ON", False, True),
        ("SET sql_mode = '', autocommit = 1", False, True),
        ("SET autocommit = 0", False, False),
        ("SET NAMES utf8mb4", False, False),
    ],
)
def test_what_ends_a_transaction(statement: str, on_postgresql: bool, on_mariadb: bool) -> None:
    assert ends_transaction(statement, "postgresql") is on_postgresql
    assert ends_transaction(statement, "mysql") is on_mariadb


def test_a_driver_that_knows_is_asked() -> None:
    connection = sqlite3.connect(":memory:")
    assert is_outside_transaction(connection)
    connection.execute("SAVEPOINT a")
    assert not is_outside_transaction(connection)
    assert not is_outside_transaction(object()), "one that does not know"
