"""The table of leases of Django's store: the one of SqlStore, without SQLAlchemy."""

from collections.abc import Iterable
from typing import Any, Final

from tallystick.dualwrite.errors import LeaseLost
from tallystick.dualwrite.rules.leases import LeaseList, LeaseRow, LeaseTaking
from tallystick.dualwrite.rules.model import LEASE_TABLE
from tallystick.dualwrite.stores.dialects import NOW_MS_SQL

LEASE_COLUMNS: Final = {
    "transactional_id": "TEXT {collation} NOT NULL PRIMARY KEY",
    "base_name": "TEXT {collation} NOT NULL",
    "id_number": "INTEGER NOT NULL",
    "holder": "VARCHAR(64) NOT NULL",
    "holder_info": "TEXT NOT NULL",
    "expires_at_ms": "BIGINT NOT NULL",
}


def read_leases(cursor: Any, vendor: str, base: str | None) -> LeaseList:
    """Read the leases of a base name, of every one if None, and the database's time."""
    cursor.execute(f"SELECT {NOW_MS_SQL[vendor]}")
    (now_ms,) = cursor.fetchone()
    statement = f"SELECT {', '.join(LEASE_COLUMNS)} FROM {LEASE_TABLE}"
    cursor.execute(*((statement,) if base is None else (f"{statement} WHERE base_name = %s", [base])))
    return LeaseList(int(now_ms), tuple(_to_row(*columns) for columns in cursor.fetchall()))


def _to_row(transactional_id: str, base: str, number: int, holder: str, *others: Any) -> LeaseRow:
    holder_info, expires_at_ms = others
    return LeaseRow(
        transactional_id=transactional_id,
        base=base,
        number=number,
        holder=holder,
        holder_info=holder_info,
        expires_at_ms=expires_at_ms,
    )


def take_lease(cursor: Any, vendor: str, taking: LeaseTaking) -> bool:
    """Acquire a lease if its row is unchanged, and return whether it was."""
    row, former = taking.row, taking.former
    until = f"{NOW_MS_SQL[vendor]} + %s"
    if former is None:
        cursor.execute(
            f"INSERT INTO {LEASE_TABLE} ({', '.join(LEASE_COLUMNS)}) VALUES (%s, %s, %s, %s, %s, {until}) "
            "ON CONFLICT (transactional_id) DO NOTHING",
            [row.transactional_id, row.base, row.number, row.holder, row.holder_info, taking.duration_ms],
        )
    else:
        taken = [row.holder, row.holder_info, taking.duration_ms]
        cursor.execute(
            f"UPDATE {LEASE_TABLE} SET holder = %s, holder_info = %s, expires_at_ms = {until} "
            "WHERE transactional_id = %s AND holder = %s AND expires_at_ms = %s",
            [*taken, row.transactional_id, former.holder, former.expires_at_ms],
        )
    return bool(cursor.rowcount == 1)


def renew_leases(
    cursor: Any, vendor: str, ids: Iterable[str], holder: str, duration_ms: int
) -> frozenset[str]:
    """Renew those leases that are still the holder's, and return the ids that it holds."""
    wanted = sorted(ids)
    if wanted:
        cursor.execute(
            f"UPDATE {LEASE_TABLE} SET expires_at_ms = {NOW_MS_SQL[vendor]} + %s WHERE holder = %s "
            f"AND transactional_id IN ({', '.join(['%s'] * len(wanted))})",
            [duration_ms, holder, *wanted],
        )
    cursor.execute(f"SELECT transactional_id FROM {LEASE_TABLE} WHERE holder = %s", [holder])
    return frozenset(str(row[0]) for row in cursor.fetchall())


def release_lease(cursor: Any, transactional_id: str, holder: str) -> None:
    """Return a lease if it is still the holder's."""
    cursor.execute(
        f"UPDATE {LEASE_TABLE} SET holder = '', holder_info = '', expires_at_ms = 0 "
        "WHERE transactional_id = %s AND holder = %s",
        [transactional_id, holder],
    )


def check_lease(cursor: Any, vendor: str, transactional_id: str, holder: str) -> None:
    """Lock the lease, and raise LeaseLost unless it is the holder's [DW-15]."""
    locking = " FOR UPDATE" if vendor == "postgresql" else ""  # SQLite has one writer at a time
    cursor.execute(
        f"SELECT holder, holder_info FROM {LEASE_TABLE} WHERE transactional_id = %s{locking}",
        [transactional_id],
    )
    row = cursor.fetchone()
    if row is None or row[0] != holder:
        raise LeaseLost(transactional_id, "" if row is None else str(row[1]))
