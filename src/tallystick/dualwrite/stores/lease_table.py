"""The table of leases of the SQL stores, and its statements.

All times are of the database's clock, read in the statement that compares or sets them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Executable,
    Integer,
    String,
    Table,
    Text,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.sql import ColumnElement

from tallystick.dualwrite.errors import LeaseLost
from tallystick.dualwrite.rules.leases import LeaseList, LeaseRow, LeaseTaking
from tallystick.dualwrite.rules.model import LEASE_TABLE
from tallystick.dualwrite.stores.dialects import NOW_MS_SQL
from tallystick.dualwrite.stores.sql_table import DualWriteTables, ExactText

_HOLDER_BYTES: Final = 64


class LeaseTable:
    """The table `kafka_transactional_id_leases`, in the MetaData of the other tables."""

    def __init__(self, tables: DualWriteTables) -> None:
        """Declare the table."""
        self.leases = Table(
            LEASE_TABLE,
            tables.states.metadata,
            Column("transactional_id", ExactText, primary_key=True),
            Column("base_name", ExactText, nullable=False),
            Column("id_number", Integer, nullable=False),
            Column("holder", String(_HOLDER_BYTES), nullable=False),
            Column("holder_info", Text, nullable=False),
            Column("expires_at_ms", BigInteger, nullable=False),
            schema=tables.states.schema,
            mysql_engine="InnoDB",
        )

    def read_now(self, dialect: str) -> Executable:
        """Select the database's time in milliseconds since the Unix epoch."""
        return select(_now_ms(dialect))

    def read(self, base: str | None) -> Executable:
        """Select the leases of a base name; of every one if None."""
        rows = select(self.leases)
        return rows if base is None else rows.where(self.leases.c.base_name == base)

    def take(self, taking: LeaseTaking, dialect: str) -> Executable:
        """Build the compare-and-set, or the INSERT, that takes a lease: one row if it succeeds."""
        row, former, leases = taking.row, taking.former, self.leases.c
        until = _now_ms(dialect) + taking.duration_ms
        if former is None:
            return insert(self.leases).values(
                transactional_id=row.transactional_id,
                base_name=row.base,
                id_number=row.number,
                holder=row.holder,
                holder_info=row.holder_info,
                expires_at_ms=until,
            )
        unchanged = (
            leases.transactional_id == row.transactional_id,
            leases.holder == former.holder,
            leases.expires_at_ms == former.expires_at_ms,
        )
        taken = {"holder": row.holder, "holder_info": row.holder_info, "expires_at_ms": until}
        return update(self.leases).where(*unchanged).values(**taken)

    def renew(self, ids: Iterable[str], holder: str, duration_ms: int, dialect: str) -> Executable:
        """Build the UPDATE that renews the leases that are still the holder's."""
        leases = self.leases.c
        mine = update(self.leases).where(leases.holder == holder, leases.transactional_id.in_(sorted(ids)))
        return mine.values(expires_at_ms=_now_ms(dialect) + duration_ms)

    def read_held(self, holder: str) -> Executable:
        """Select the ids whose lease a holder has, expired or not."""
        return select(self.leases.c.transactional_id).where(self.leases.c.holder == holder)

    def release(self, transactional_id: str, holder: str) -> Executable:
        """Build the UPDATE that gives a lease back if it is still the holder's."""
        leases = self.leases.c
        mine = update(self.leases).where(leases.holder == holder, leases.transactional_id == transactional_id)
        return mine.values(holder="", holder_info="", expires_at_ms=0)

    def read_holder_locked(self, transactional_id: str) -> Executable:
        """Select holder and holder_info, and keep others from taking the lease until the commit."""
        leases = self.leases.c
        row = select(leases.holder, leases.holder_info).where(leases.transactional_id == transactional_id)
        return row.with_for_update()


def _now_ms(dialect: str) -> ColumnElement[int]:
    return literal_column(NOW_MS_SQL[dialect], BigInteger)


def leases_from_rows(now_ms: object, rows: Iterable[Mapping[str, Any]]) -> LeaseList:
    """Convert the results of `read_now` and `read`."""
    return LeaseList(
        int(str(now_ms)),
        tuple(
            LeaseRow(
                transactional_id=row["transactional_id"],
                base=row["base_name"],
                number=row["id_number"],
                holder=row["holder"],
                holder_info=row["holder_info"],
                expires_at_ms=row["expires_at_ms"],
            )
            for row in rows
        ),
    )


def check_holder(transactional_id: str, holder: str, row: Any) -> None:
    """Raise LeaseLost unless the result of `read_holder_locked` names the holder [DW-15]."""
    if row is None or row[0] != holder:
        raise LeaseLost(transactional_id, "" if row is None else str(row[1]))
