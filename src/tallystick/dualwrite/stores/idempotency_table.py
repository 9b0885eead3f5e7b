"""The table of idempotency keys in an SQL database, its statements, and the database's clock.

A key is inserted by the transaction of the work, before anything else. If another transaction has inserted
it and not ended, the statement waits. If that one is committed, nothing is inserted and its result is read.
A transaction that cannot see what was committed meanwhile fails with a conflict, and is run again.

Sources: PostgreSQL, "INSERT", ON CONFLICT DO NOTHING: at REPEATABLE READ and above a row that the snapshot
does not contain is a serialization failure. MariaDB, "INSERT ON DUPLICATE KEY UPDATE": it waits for the lock
of the row and, unlike INSERT IGNORE, turns no other error into a warning.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Delete,
    Executable,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    delete,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from tallystick.dualwrite.idempotency import IdempotencyKey
from tallystick.dualwrite.model import KEYS_TABLE
from tallystick.dualwrite.stores.sql_table import MYSQL, ExactText

NOW_MS: Final[Mapping[str, str]] = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}
"""The database's clock in milliseconds since 1970, as SQL."""


class IdempotencyTable:
    """The table `kafka_idempotency_keys`, in the MetaData of the other tables."""

    def __init__(self, metadata: MetaData, *, schema: str | None = None) -> None:
        """Declare the table."""
        self.keys = Table(
            KEYS_TABLE,
            metadata,
            Column("scope", ExactText, nullable=False),
            Column("idempotency_key", ExactText, nullable=False),
            Column("claim", String(64), nullable=False),
            Column("result", Text().with_variant(mysql.LONGTEXT(), *MYSQL)),
            Column("created_at", BigInteger, nullable=False),
            PrimaryKeyConstraint("scope", "idempotency_key"),
            schema=schema,
            mysql_engine="InnoDB",
        )

    def claim(self, key: IdempotencyKey, claim: str, dialect: str) -> Executable:
        """Insert the key, unless it is there. Execution waits for a transaction that has inserted it.

        Args:
            claim: random text, by which `read_claim` recognises the row.
        """
        values = {
            "scope": key.scope,
            "idempotency_key": key.key,
            "claim": claim,
            "created_at": _now_ms(dialect),
        }
        if dialect in MYSQL:
            kept = mysql.insert(self.keys).values(values)
            return kept.on_duplicate_key_update(claim=self.keys.c.claim)
        statement = postgresql.insert(self.keys) if dialect == "postgresql" else sqlite.insert(self.keys)
        return statement.values(values).on_conflict_do_nothing()

    def read_claim(self, key: IdempotencyKey, dialect: str) -> Executable:
        """Select the claim and the result of a key as they are committed, whatever the snapshot shows."""
        statement = select(self.keys.c.claim, self.keys.c.result).where(*self._is(key))
        return statement.with_for_update() if dialect in MYSQL else statement

    def store_result(self, key: IdempotencyKey, claim: str, text: str) -> Executable:
        """Store the result with the key that this transaction has inserted."""
        return update(self.keys).where(*self._is(key), self.keys.c.claim == claim).values(result=text)

    def forget(self, older_than_ms: int, dialect: str) -> Delete:
        """Delete the keys that were inserted before that many milliseconds ago."""
        return delete(self.keys).where(self.keys.c.created_at < _now_ms(dialect) - older_than_ms)

    def _is(self, key: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
        return self.keys.c.scope == key.scope, self.keys.c.idempotency_key == key.key


def _now_ms(dialect: str) -> ColumnElement[Any]:
    family = "mysql" if dialect in MYSQL else dialect
    return literal_column(NOW_MS[family], BigInteger)
