"""Decisions in a database row, committed in one transaction with the rows of the tables.

    prefix         of the transactional ids
    owner          the producer id and epoch of P/coordinator at the last claim of the prefix
    decision       the last one, encoded as in `committable`; done when all its transactions are committed

The commit of the database is the commit point. A crash before it undoes everything, rows and records;
after it everything is completed [SPK-40].

Both the cluster and the row record the owner of the prefix, and they must agree. So a driver takes the row
under its lock, and only if the cluster confirms, while the lock is held, that the driver's producer id and
epoch are the current ones. Of two drivers, the one that claimed the cluster last always ends up with the row,
no matter which is faster [SPK-43]. docs/design/spark-sink.md.
"""

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, cast

from sqlalchemy import CursorResult, Engine, Executable, inspect, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateTable

from tallystick.dualwrite.errors import NotCommitted
from tallystick.dualwrite.stores.sql import SqlStore, SqlTransaction
from tallystick.dualwrite.stores.sql_table import first_statements
from tallystick.kernel.check import check
from tallystick.kernel.errors import InDoubt
from tallystick.kernel.ids import ProducerIdAndEpoch
from tallystick.spark.decisions.decision_table import (
    DATABASE_NAME_KEY,
    DECISIONS,
    SCHEMA_VERSION,
    TABLE,
    check_columns,
    read_decision,
)
from tallystick.spark.decisions.staging import StagingTable
from tallystick.spark.options.sinks import StagedMoves
from tallystick.spark.protocol.committable import Decision, encode_decision
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import PrefixTaken, VoteLost

_DATABASE_NAME_BYTES: Final = 16
_MYSQL: Final = ("mysql", "mariadb")


class DecisionRow:
    """The row of one prefix. Its calls block on the database.

    `store_log.DatabaseDecisionLog` is the asynchronous interface.
    """

    keeps_completion = True

    def __init__(self, engine: Engine, prefix: str, staging_tables: Sequence[StagingTable] = ()) -> None:
        self.prefix = prefix
        self._engine, self._staging_tables = engine, staging_tables
        self._store = SqlStore(engine)  # for its transactions, which check that commits are durable
        self._is_created = False

    def claim(self, owner: ProducerIdAndEpoch, is_last: Callable[[], bool]) -> bool:
        """Give the prefix to `owner` and sweep staged rows, if `is_last()` holds under the row's lock.

        Order: waits for a decision in flight; when this returns True, that is in the row or will never be.
        """
        self.create_table()
        for each in self._staging_tables:
            each.create()
        transaction = self._store.begin()
        try:
            connection = transaction.connection
            if connection.dialect.name == "postgresql":
                for statement in first_statements("postgresql", claiming=True):
                    connection.execute(statement)
            connection.execute(self._claim_statement(str(owner), connection.dialect.name))
            if not is_last():
                return False
            for each in self._staging_tables:
                each.sweep(connection)
            transaction.commit()
        finally:
            transaction.rollback()
        return True

    def _claim_statement(self, owner: str, dialect: str) -> Executable:
        values = {"prefix": self.prefix, "owner": owner, "done": 0, "schema_version": SCHEMA_VERSION}
        if dialect in _MYSQL:
            return mysql.insert(DECISIONS).values(values).on_duplicate_key_update(owner=owner)
        statement = postgresql.insert(DECISIONS) if dialect == "postgresql" else sqlite.insert(DECISIONS)
        return statement.values(values).on_conflict_do_update(
            index_elements=["prefix"], set_={"owner": owner}
        )

    def find_location(self) -> str | None:
        """Return the name that the decision table keeps for its database; it survives a change of address."""
        if not self._is_created and not inspect(self._engine).has_table(TABLE):
            return None
        with self._engine.connect() as connection:
            name = connection.execute(
                select(DECISIONS.c.owner).where(DECISIONS.c.prefix == DATABASE_NAME_KEY)
            ).scalar()
        return None if name is None else f"database {name}"

    def read(self) -> DecisionState:
        """Read the last decision. Raises: BadCommittable, BadStore."""
        if not self._is_created:
            inspector = inspect(self._engine)
            if not inspector.has_table(TABLE):
                return DecisionState()
            check_columns(inspector)
        with self._engine.connect() as connection:
            row = (
                connection.execute(select(DECISIONS).where(DECISIONS.c.prefix == self.prefix))
                .mappings()
                .first()
            )
        return DecisionState() if row is None else read_decision(cast(Mapping[str, object], row))

    def decide(
        self,
        decision: Decision,
        owner: ProducerIdAndEpoch,
        moves: StagedMoves,
        is_in_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """Commit the decision and the moved rows in one transaction, if `owner` still owns the prefix.

        This is the commit point.

        Args:
            is_in_time: called when all rows are moved; returns whether the cluster still keeps the prepared
                transactions.
        Raises: PrefixTaken, VoteLost, RowsRejected: nothing is decided. InDoubt.
        """
        check(len(moves.rows) == len(self._staging_tables), "a decision moves the rows of every table")
        self._commit(
            owner,
            {"decision": encode_decision(decision).decode(), "nonce": decision.nonce, "done": 0},
            moves,
            is_in_time,
        )

    def forget(self, owner: ProducerIdAndEpoch) -> None:
        nothing = StagedMoves(attempts=(), rows=(0,) * len(self._staging_tables))
        self._commit(owner, {"decision": None, "nonce": None, "done": 0}, nothing, lambda: True)

    def _commit(
        self,
        owner: ProducerIdAndEpoch,
        values: Mapping[str, object],
        moves: StagedMoves,
        is_in_time: Callable[[], bool],
    ) -> None:
        own_row = (DECISIONS.c.prefix == self.prefix, DECISIONS.c.owner == str(owner))
        transaction = self._store.begin()
        try:
            # The update comes first, because it takes the lock that a claim waits for.
            result = transaction.connection.execute(update(DECISIONS).where(*own_row).values(values))
            if cast(CursorResult[Any], result).rowcount != 1:
                raise PrefixTaken(self.prefix, f"its row in {TABLE} is no longer {owner}'s")
            for each, rows in zip(self._staging_tables, moves.rows, strict=True):
                each.move(transaction.connection, moves.attempts, rows)
            if not is_in_time():
                raise VoteLost(
                    f"{self.prefix}: moving the rows took so long that the cluster may abort the batch's "
                    "transactions before they are decided. Nothing was decided. Make batches smaller, "
                    "or raise kafka.transaction.timeout.ms; two-phase commit has no such limit"
                )
            self._commit_or_raise(transaction)
        finally:
            transaction.rollback()

    def _commit_or_raise(self, transaction: SqlTransaction) -> None:
        """Commit. Raises: the cause if it certainly did not commit; InDoubt after any other error [DW-3]."""
        try:
            transaction.commit()
        except NotCommitted as exc:
            raise exc.cause from exc
        except Exception as exc:
            raise InDoubt(
                f"the decision of {self.prefix!r} was sent to the database, and whether it was committed "
                f"is not known: {exc}. Restart the query: it finds out, and completes or repeats the batch"
            ) from exc

    def mark_done(self, nonce: str) -> None:
        own_row = (DECISIONS.c.prefix == self.prefix, DECISIONS.c.nonce == nonce)
        with self._engine.begin() as connection:
            connection.execute(update(DECISIONS).where(*own_row).values(done=1))

    def create_table(self) -> None:
        """Create the table once, if it is missing. Raises: BadStore for a table of another version."""
        if self._is_created:
            return
        with self._engine.begin() as connection:
            connection.execute(CreateTable(DECISIONS, if_not_exists=True))
            check_columns(inspect(connection))
            connection.execute(_name_database_statement(connection.dialect.name))
        self._is_created = True


def _name_database_statement(dialect: str) -> Executable:
    """Return the statement that names the database, unless it has a name."""
    name = token_hex(_DATABASE_NAME_BYTES)
    values = {"prefix": DATABASE_NAME_KEY, "owner": name, "done": 0, "schema_version": SCHEMA_VERSION}
    if dialect in _MYSQL:
        return mysql.insert(DECISIONS).values(values).prefix_with("IGNORE")
    statement = postgresql.insert(DECISIONS) if dialect == "postgresql" else sqlite.insert(DECISIONS)
    return statement.values(values).on_conflict_do_nothing(index_elements=["prefix"])
