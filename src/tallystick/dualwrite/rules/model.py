"""The state row that a database keeps for a transactional id, as columns or as JSON text. Pure.

A *claim* writes a new random `owner` into the row and changes nothing else; from then on no commit by a
writer with an older owner can succeed. A *record*, in the database transaction of the user's own rows, writes
the name of the Kafka transaction that belongs to them. So the row always names the last Kafka transaction
whose database transaction committed. When recovery has seen that the Kafka transaction is finished too, it
records that as `settled`, because initialising an id erases the cluster's record of the past.

`former_producer_ids` is the row's history. A transactional id gets another producer id when the epochs of one
are exhausted, and two producer ids alone do not show which came first: brokers allocate them from different
blocks. A transaction in doubt under a former producer id is older than the row, which is impossible with an
intact log.

Source: KIP-939 "Normal processing recipe", "a mapping of transactionalId (string) to preparedTransactionState
(string)".
"""

import json
from collections.abc import Mapping
from typing import Final

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import CorruptRow
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value, replace

SCHEMA_VERSION: Final = 1
"""The version of the columns below. Rows of any other version are refused."""

TABLE: Final = "kafka_transaction_state"
"""The name of the table, column family or path, as in KIP-939."""

KEYS_TABLE: Final = "kafka_idempotency_keys"
LEASE_TABLE: Final = "kafka_transactional_id_leases"

FORMER_MAX: Final = 32
"""Maximum number of former producer ids in a row: a million transactions, at 32,768 epochs each."""

NOTHING: Final = PreparedTxnState()
# Flags in the column `settled`, in addition to 0 or 1; a reader that does not know them sees "not settled".
_COMPLETING_FLAG: Final = 2
_NOTES_FLAG: Final = 4
_ALONE_FLAG: Final = 8
_NEW_FLAG: Final = 16


class StoredState(Value, kw_only=True):
    """The stored row of one transactional id.

    owner                token of the writer that may record; a claim replaces it
    state                the last Kafka transaction that the database committed; empty if there was none yet
    settled              both sides of `state` are known to be finished
    completing           a recovery is committing `state` in Kafka, or has done so: InitProducerId assigns a
                         new epoch or producer id, and the commit that the cluster shows later is this one
    notes                no writer aborts a later transaction before it is recorded that `state` is settled
    alone                recorded by a DualWriter of its own, not by one of a pool
    known                a recovery has ended under this row: what is open later was begun with this database.
                         Matters while `state` is empty; a row that a claim has just made does not have it.
                         Its absence is stored: rows of earlier versions do not tell, and count as known
    former_producer_ids  producer ids that `state` named before, oldest first
    cluster_id           cluster of that transaction; None: nothing was recorded, or the cluster has no id
    transaction_version  transaction.version it was started with; below 2 one producer id and epoch names
                         many transactions (KIP-890)
    started_at_ms        start time by the writer's clock, in milliseconds since the Unix epoch
    timeout_ms           time after which the cluster might have aborted it; None: never
    """

    transactional_id: str
    owner: str
    state: PreparedTxnState = NOTHING
    settled: bool = False
    completing: bool = False
    notes: bool = False
    alone: bool = False
    known: bool = False
    former_producer_ids: tuple[int, ...] = ()
    cluster_id: str | None = None
    transaction_version: int | None = None
    started_at_ms: int | None = None
    timeout_ms: int | None = None
    schema_version: int = SCHEMA_VERSION

    def owned_by(self, owner: str) -> "StoredState":
        """Return the row as it is after a claim."""
        return replace(self, owner=owner)

    @property
    def pending(self) -> PreparedTxnState:
        """The transaction that may still have to be committed in Kafka, or an empty state."""
        return NOTHING if self.settled else self.state

    def former_ids_before(self, state: PreparedTxnState) -> tuple[int, ...]:
        """Return `former_producer_ids` for a row that names `state`."""
        now = self.state.producer_id
        if now is None or now == state.producer_id:
            return self.former_producer_ids
        former_ids = tuple(each for each in self.former_producer_ids if each != now)
        return (*former_ids, now)[-FORMER_MAX:]


ColumnValue = str | int | None


def to_columns(row: StoredState) -> dict[str, ColumnValue]:
    """Convert a row to plain values, in the order of the table's columns."""
    return {
        "transactional_id": row.transactional_id,
        "owner": row.owner,
        "prepared_transaction_state": str(row.state),
        "settled": row.settled
        + _COMPLETING_FLAG * row.completing
        + _NOTES_FLAG * row.notes
        + _ALONE_FLAG * row.alone
        + _NEW_FLAG * (not row.known),
        "former_producer_ids": " ".join(map(str, row.former_producer_ids)),
        "cluster_id": row.cluster_id,
        "transaction_version": row.transaction_version,
        "started_at": row.started_at_ms,
        "timeout_ms": row.timeout_ms,
        "schema_version": row.schema_version,
    }


def from_columns(columns: Mapping[str, object]) -> StoredState:
    """Convert the result of `to_columns` back. Raises: CorruptRow otherwise, including for a newer schema."""
    transactional_id = columns.get("transactional_id")
    try:
        version = _expect_int(columns["schema_version"])
        if version != SCHEMA_VERSION:
            raise CorruptRow(
                str(transactional_id), f"schema version {version}; this library knows {SCHEMA_VERSION}"
            )
        return StoredState(
            transactional_id=_expect_str(columns["transactional_id"]),
            owner=_expect_str(columns["owner"]),
            state=PreparedTxnState(_expect_str(columns["prepared_transaction_state"])),
            settled=bool(_expect_int(columns["settled"]) & 1),
            completing=bool(_expect_int(columns["settled"]) & _COMPLETING_FLAG),
            notes=bool(_expect_int(columns["settled"]) & _NOTES_FLAG),
            alone=bool(_expect_int(columns["settled"]) & _ALONE_FLAG),
            known=not _expect_int(columns["settled"]) & _NEW_FLAG,
            former_producer_ids=tuple(
                int(each) for each in _expect_str(columns["former_producer_ids"]).split()
            ),
            cluster_id=None if columns["cluster_id"] is None else _expect_str(columns["cluster_id"]),
            transaction_version=_expect_optional_int(columns["transaction_version"]),
            started_at_ms=_expect_optional_int(columns["started_at"]),
            timeout_ms=_expect_optional_int(columns["timeout_ms"]),
        )
    except CorruptRow:
        raise
    except KeyError as exc:
        raise CorruptRow(str(transactional_id), f"column {exc} is missing") from exc
    except (TallystickError, TypeError, ValueError) as exc:
        raise CorruptRow(str(transactional_id), str(exc)) from exc


def to_bytes(row: StoredState) -> bytes:
    """Serialize a row as a UTF-8 JSON object of its columns, for key-value stores."""
    return json.dumps(to_columns(row), separators=(",", ":"), ensure_ascii=False).encode()


def from_bytes(transactional_id: str, data: bytes) -> StoredState:
    """Parse the result of `to_bytes`. Raises: CorruptRow, also if it is the row of another id."""
    try:
        columns = json.loads(data)
    except ValueError as exc:
        raise CorruptRow(transactional_id, f"not JSON: {data[:60]!r}") from exc
    if not isinstance(columns, dict):
        raise CorruptRow(transactional_id, f"not a JSON object: {data[:60]!r}")
    row = from_columns(columns)
    if row.transactional_id != transactional_id:
        raise CorruptRow(transactional_id, f"it is the row of {row.transactional_id!r}")
    return row


def _expect_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _expect_int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _expect_optional_int(value: object) -> int | None:
    return None if value is None else _expect_int(value)
