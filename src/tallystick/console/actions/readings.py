"""Readings for the dry run of an action, as values. Pure."""

from collections.abc import Iterable, Mapping

from tallystick.admin.model import GroupDescription, OpenTransaction
from tallystick.admin.txn.hanging import HangingCase
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.console.model.snapshot import PrefixFacts, Snapshot, StoreFacts
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value, replace
from tallystick.spark.protocol.committable import Decision
from tallystick.spark.protocol.decide import ParticipantOutcome
from tallystick.spark.protocol.transactional_ids import format_coordinator_id, parse_worker_id


class CannotRead(TallystickError):
    """The present state could not be read, so that nothing can be planned."""


class ClusterReading(Value, kw_only=True):
    """A reading of one cluster: another one may answer at the same address, and have the same names."""

    cluster_id: str | None = None


class TransactionReading(ClusterReading, kw_only=True):
    """The views of one transactional id.

    snapshot           every store and every decision, with what they have of this id alone
    open_transactions  what the leaders of its partitions have open of its producer
    ends               end offsets of these partitions
    completion         for `CompleteByState`: what the state comes to
    """

    snapshot: Snapshot
    transactional_id: str
    open_transactions: tuple[OpenTransaction, ...] = ()
    ends: Mapping[TopicPartition, int] = {}
    completion: "CompletionOutlook | None" = None


class RowsReading(ClusterReading, kw_only=True):
    """The views of several transactional ids, all read together."""

    readings: tuple[TransactionReading, ...]


class CompletionOutlook(Value, kw_only=True):
    """The outcome that `admin.txn.completion` derives from a stored state.

    outcome        its word, such as `commit`
    text           its sentence
    sends_request  whether anything would be done
    """

    outcome: str
    text: str
    sends_request: bool


class AbortReading(ClusterReading, kw_only=True):
    """The transaction that an ABORT marker would end.

    case     None if that transaction is not open there
    missing  why not
    guarded  the leader itself checks that it is still this transaction
    owner    the views of the id that its coordinator has it under; None if none has
    end      the partition's end offset
    """

    case: HangingCase | None
    missing: str = ""
    guarded: bool = False
    owner: TransactionReading | None = None
    end: int | None = None


class PrefixReading(ClusterReading, kw_only=True):
    """Transactions that a Spark query left open.

    source         the topic or the store of its decisions
    outcomes       of the last decision's transactions, unless all are known to be committed
    undecided_ids  open transactions that are in no decision
    lost_ids       transactions that were decided and can no longer be committed
    """

    source: str
    decision: Decision | None
    outcomes: Mapping[str, ParticipantOutcome]
    undecided_ids: tuple[str, ...]
    lost_ids: tuple[str, ...]


class OffsetMove(Value, kw_only=True):
    """A committed offset, None without one, and the one that replaces it."""

    current: OffsetAndMetadata | None
    target: OffsetAndMetadata


class ResetReading(ClusterReading, kw_only=True):
    """A group, and the offsets that it would get.

    group    None if its coordinator does not know it
    pending  partitions with offsets in a transaction that is not decided yet
    """

    group: GroupDescription | None
    moves: Mapping[TopicPartition, OffsetMove]
    pending: frozenset[TopicPartition] = frozenset()


def narrow_stores(stores: Iterable[StoreFacts], transactional_id: str) -> tuple[StoreFacts, ...]:
    """Return the stores with what they have of one id: a form that may come back keeps it for so long."""
    return tuple(
        replace(
            store,
            rows={name: row for name, row in store.rows.items() if name == transactional_id},
            leases=tuple(each for each in store.leases if each.transactional_id == transactional_id),
            server_prepared=(),
            prefixes=narrow_prefixes(store.prefixes, transactional_id),
        )
        for store in stores
    )


def narrow_prefixes(prefixes: Iterable[PrefixFacts], transactional_id: str) -> tuple[PrefixFacts, ...]:
    """Return the Spark prefixes that an id may belong to."""
    worker = parse_worker_id(transactional_id)
    return tuple(
        each
        for each in prefixes
        if format_coordinator_id(each.prefix) == transactional_id
        or (worker is not None and worker.prefix == each.prefix)
    )


Reading = TransactionReading | RowsReading | AbortReading | PrefixReading | ResetReading
