"""What a database keeps of a transactional id: one row, in columns or in one text. Pure.

A *claim* puts a new random `owner` into it and changes nothing else; from then on nobody's commit can succeed
who holds an older owner. A *record*, in the database transaction of the user's own rows, puts there the name
of the Kafka transaction that belongs to them. So the row always names the last Kafka transaction whose
database half was committed. When recovery has seen that the other half is finished, too, it notes that as
`settled`: initialising an id wipes out what the cluster could tell of the past.

`former_producer_ids` is the row's history. A transactional id gets another producer id when the epochs of one
are used up, and two producer ids alone do not tell which was first: brokers take them from different blocks.
A transaction in doubt under a former one is older than the row, which a healthy log cannot show.

Source: KIP-939 "Normal processing recipe", "a mapping of transactionalId (string) to preparedTransactionState
(string)".
"""

import json
from collections.abc import Mapping
from typing import Final

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import BadRow
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen, replace

SCHEMA_VERSION: Final = 1
"""The version of the columns below. A store with another one is refused, never guessed at."""

TABLE: Final = "kafka_transaction_state"
"""The name of the table, column family or path; KIP-939's."""

FORMER_MAX: Final = 32
"""How many former producer ids a row keeps: a million transactions, at 32,768 epochs each."""

NOTHING: Final = PreparedTxnState()
# In the column `settled`, beside 0 or 1; who does not know them reads "not settled".
_COMPLETED: Final = 2
_NOTES: Final = 4
_ALONE: Final = 8


@frozen(kw_only=True)
class StoredState:
    """One transactional id in the store.

    owner                the token of who may record; a claim replaces it
    state                the last Kafka transaction that the database committed; empty: there was none yet
    settled              both halves of `state` are known to be finished
    completing           a recovery commits `state` in Kafka, or has: InitProducerId moves the pair on, and
                         what the cluster shows committed afterwards is this one
    notes                before a later transaction is aborted, it is noted that `state` is settled
    alone                it was recorded by a DualWriter of its own, and not by one of a pool
    former_producer_ids  those that `state` named before, oldest first
    cluster_id           where that transaction was; None: nothing was recorded, or the cluster has no id
    transaction_version  what it was started with; below 2 a pair names many transactions
    started_at_ms        when it was begun, in milliseconds since the epoch, by the writer's clock
    timeout_ms           after which the cluster might have aborted it; None: never
    """

    transactional_id: str
    owner: str
    state: PreparedTxnState = NOTHING
    settled: bool = False
    completing: bool = False
    notes: bool = False
    alone: bool = False
    former_producer_ids: tuple[int, ...] = ()
    cluster_id: str | None = None
    transaction_version: int | None = None
    started_at_ms: int | None = None
    timeout_ms: int | None = None
    schema_version: int = SCHEMA_VERSION

    def owned_by(self, owner: str) -> "StoredState":
        """The row after a claim."""
        return replace(self, owner=owner)

    @property
    def pending(self) -> PreparedTxnState:
        """What may still have to be committed in Kafka."""
        return NOTHING if self.settled else self.state

    def after(self, state: PreparedTxnState) -> tuple[int, ...]:
        """`former_producer_ids` once the row names `state`."""
        now = self.state.producer_id
        if now is None or now == state.producer_id:
            return self.former_producer_ids
        kept = tuple(each for each in self.former_producer_ids if each != now)
        return (*kept, now)[-FORMER_MAX:]


Value = str | int | None


def to_columns(row: StoredState) -> dict[str, Value]:
    """The row as plain values, in the order of the table's columns."""
    return {
        "transactional_id": row.transactional_id,
        "owner": row.owner,
        "prepared_transaction_state": str(row.state),
        "settled": row.settled + _COMPLETED * row.completing + _NOTES * row.notes + _ALONE * row.alone,
        "former_producer_ids": " ".join(map(str, row.former_producer_ids)),
        "cluster_id": row.cluster_id,
        "transaction_version": row.transaction_version,
        "started_at": row.started_at_ms,
        "timeout_ms": row.timeout_ms,
        "schema_version": row.schema_version,
    }


def from_columns(columns: Mapping[str, object]) -> StoredState:
    """What `to_columns` gave. Raises: BadRow for anything else, a newer schema included."""
    who = columns.get("transactional_id")
    try:
        version = _whole(columns["schema_version"])
        if version != SCHEMA_VERSION:
            raise BadRow(str(who), f"schema version {version}; this library knows {SCHEMA_VERSION}")
        return StoredState(
            transactional_id=_text(columns["transactional_id"]),
            owner=_text(columns["owner"]),
            state=PreparedTxnState(_text(columns["prepared_transaction_state"])),
            settled=bool(_whole(columns["settled"]) & 1),
            completing=bool(_whole(columns["settled"]) & _COMPLETED),
            notes=bool(_whole(columns["settled"]) & _NOTES),
            alone=bool(_whole(columns["settled"]) & _ALONE),
            former_producer_ids=tuple(int(each) for each in _text(columns["former_producer_ids"]).split()),
            cluster_id=None if columns["cluster_id"] is None else _text(columns["cluster_id"]),
            transaction_version=_whole_or_none(columns["transaction_version"]),
            started_at_ms=_whole_or_none(columns["started_at"]),
            timeout_ms=_whole_or_none(columns["timeout_ms"]),
        )
    except BadRow:
        raise
    except KeyError as exc:
        raise BadRow(str(who), f"column {exc} is missing") from exc
    except (TallystickError, TypeError, ValueError) as exc:
        raise BadRow(str(who), str(exc)) from exc


def to_bytes(row: StoredState) -> bytes:
    """The row for a store that keeps values and no columns: a JSON object of the columns, in UTF-8."""
    return json.dumps(to_columns(row), separators=(",", ":"), ensure_ascii=False).encode()


def from_bytes(transactional_id: str, data: bytes) -> StoredState:
    """What `to_bytes` gave. Raises: BadRow, also if it is the row of another id."""
    try:
        columns = json.loads(data)
    except ValueError as exc:
        raise BadRow(transactional_id, f"not JSON: {data[:60]!r}") from exc
    if not isinstance(columns, dict):
        raise BadRow(transactional_id, f"not a JSON object: {data[:60]!r}")
    row = from_columns(columns)
    if row.transactional_id != transactional_id:
        raise BadRow(transactional_id, f"it is the row of {row.transactional_id!r}")
    return row


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)
