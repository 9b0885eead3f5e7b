# Generated from dualwrite/stores/commit_message_async.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""The record of a dual write and COMMIT in one message to PostgreSQL, through psycopg 3.

`sql_one_message` has the texts, and why COMMIT is not executed if the record finds no row.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tallystick.dualwrite.errors import DualWriteError, NotCommitted, NotYours
from tallystick.dualwrite.model import StoredState, from_columns
from tallystick.dualwrite.stores import sql_one_message, sql_table
from tallystick.dualwrite.stores.base import check_record
from tallystick.dualwrite.stores.durability import AllowedRisks
from tallystick.dualwrite.stores.refusals import TRANSACTION_ENDED_TEXT
from tallystick.dualwrite.stores.sql_calls import get_connection, get_driver_connection
from tallystick.dualwrite.stores.sql_one_message import CommitTexts
from tallystick.dualwrite.stores.sql_table import DualWriteTables

_log = logging.getLogger(__name__)

_POSTGRESQL: Final = "postgresql"


class CommitMessage:
    """The records of one transaction, until they are sent with its COMMIT."""

    def __init__(
        self,
        connection: Connection,
        tables: DualWriteTables,
        texts: CommitTexts,
        allowed: AllowedRisks,
        mark: str,
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._texts = texts
        self._allowed = allowed
        self._mark = mark
        self._records: list[tuple[StoredState, StoredState]] = []

    @property
    def has_records(self) -> bool:
        """Whether there is something to record at the commit."""
        return bool(self._records)

    def is_possible(self) -> bool:
        """Return whether this database, driver and engine allow one message for both."""
        driver = get_driver_connection(self._connection)
        dbapi = self._connection.dialect.loaded_dbapi
        return sql_one_message.can_commit_in_one(get_connection(self._connection), driver, dbapi)

    def add(self, row: StoredState, before: StoredState) -> None:
        """Record `row` at the commit, if its owner and the state of `before` are unchanged then."""
        self._records.append((row, before))

    def send(self) -> None:
        """Send records and COMMIT.

        Raises: NotCommitted if a record has failed, since COMMIT is not executed then. The error that
            SQLAlchemy raises for a COMMIT.
        """
        driver: Any = get_driver_connection(self._connection)
        dbapi: Any = self._connection.dialect.loaded_dbapi
        connection = get_connection(self._connection)
        records = [
            sql_table.record_parameters(row, before, _POSTGRESQL, self._mark) for row, before in self._records
        ]
        sql, values = self._texts.build(connection.dialect, records)
        try:
            dbapi.ClientCursor(driver).execute(sql, values)
        except dbapi.Error as exc:
            failure = sql_one_message.to_sqlalchemy_error(connection, exc)
            if not sql_one_message.is_still_open(driver):
                raise failure from exc
            raise NotCommitted(self._explain(failure)) from failure

    def _explain(self, failure: DBAPIError) -> Exception:
        """Return the reason why a record has failed. The transaction has failed with it."""
        try:
            sql_one_message.check_durable(failure, self._allowed)
            if sql_one_message.is_missed(failure):
                self._check_rows()
                return NotYours(TRANSACTION_ENDED_TEXT)
        except DualWriteError as exc:
            return exc
        except DBAPIError:
            _log.warning("the reason why nothing was recorded could not be read", exc_info=True)
        return failure

    def _check_rows(self) -> None:
        """Read the rows in another transaction. Raises: Fenced, DatabaseBehind [DW-2, DW-12]."""
        self._connection.rollback()
        for row, before in self._records:
            result = self._connection.execute(self._tables.read_locked(row.transactional_id))
            now = result.mappings().first()
            stored = None if now is None else from_columns(cast("Mapping[str, object]", now))
            check_record(stored, row, before)
