"""The table of idempotency keys in an SQL database and its statements.

A key is inserted by the transaction of the work, before anything else. If another transaction has inserted
it and not ended, the statement waits. If that one is committed, nothing is inserted and its result is read.
A transaction that cannot see what was committed meanwhile fails with a conflict, and is run again.

Sources: PostgreSQL, "INSERT", ON CONFLICT DO NOTHING: at REPEATABLE READ and above a row that the snapshot
does not contain is a serialization failure. MariaDB, "INSERT ON DUPLICATE KEY UPDATE": it waits for the lock
of the row and, unlike INSERT IGNORE, turns no other error into a warning.
"""

from typing import Any

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

from tallystick.dualwrite.rules.idempotency import IdempotencyKey
from tallystick.dualwrite.rules.model import KEYS_TABLE, StoredState
from tallystick.dualwrite.stores.dialects import NOW_MS_SQL
from tallystick.dualwrite.stores.sql_table import MYSQL, ExactText


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

    def find(self, row: StoredState) -> Executable:
        """Select scope, key and result of the keys that may be of a row's transaction, for `select_keys`."""
        keys = self.keys.c
        named = keys.result.contains(f'"{row.state}"')
        return select(keys.scope, keys.idempotency_key, keys.result).where(named)

    def forget(self, older_than_ms: int, dialect: str) -> Delete:
        """Delete the keys that were inserted before that many milliseconds ago."""
        return delete(self.keys).where(self.keys.c.created_at < _now_ms(dialect) - older_than_ms)

    def _is(self, key: IdempotencyKey) -> tuple[ColumnElement[bool], ...]:
        return self.keys.c.scope == key.scope, self.keys.c.idempotency_key == key.key


def _now_ms(dialect: str) -> ColumnElement[Any]:
    return literal_column(NOW_MS_SQL[dialect], BigInteger)
