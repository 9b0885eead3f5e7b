"""What an administrator is told of transactions, as values. The wire's -1 is None here.

Source: KIP-664; the private tags of docs/formats/private-tags.md.
"""

from enum import IntEnum

from tallystick.kernel.ids import Identity, TopicPartition
from tallystick.kernel.value import frozen

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@frozen(kw_only=True)
class ListedTransaction:
    """A transactional id in a coordinator's list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class Cause(IntEnum):
    """Why a transaction was aborted without its client having asked."""

    TERMINATED = 1
    TIMED_OUT = 2
    MARKER = 3


@frozen(kw_only=True)
class ForcedOutcome:
    """A transaction that was aborted, and not by its client. Only tallystick's broker tells."""

    writer: Identity
    cause: Cause | int  # a number: one of a later version
    at_ms: int
    partition: TopicPartition | None  # with MARKER: where; else it was aborted as a whole


@frozen(kw_only=True)
class TransactionDescription:
    """A transactional id as its coordinator describes it."""

    transactional_id: str
    coordinator: int
    state: str  # Kafka's name
    writer: Identity  # the pair that wrote; once decided, that of the markers
    timeout_ms: int | None  # None: two-phase commit, it never ends by itself
    started_ms: int | None
    partitions: frozenset[TopicPartition]  # without a marker yet
    superseded: Identity | None = None  # what the owner of the pair was called before; ours alone tells
    forced_outcomes: tuple[ForcedOutcome, ...] = ()

    @property
    def in_doubt(self) -> bool:
        """May it be prepared, so that only an outside decision is to end it?"""
        return self.state == "Ongoing" and self.timeout_ms is None


@frozen(kw_only=True)
class ProducerState:
    """A producer as a partition remembers it."""

    identity: Identity
    last_sequence: int | None
    last_timestamp_ms: int | None
    coordinator_epoch: int | None  # of its last marker
    txn_start_offset: int | None  # None: nothing is open


@frozen(kw_only=True)
class OpenTransaction:
    """An open transaction as a partition's leader sees it."""

    partition: TopicPartition
    writer: Identity
    coordinator_epoch: int | None  # of the last marker of this producer; None: there was none
    start_offset: int
    last_timestamp_ms: int | None  # of its last record, as its producer chose it

    @property
    def key(self) -> tuple[TopicPartition, Identity, int]:
        """What stays the same for as long as it is the same transaction."""
        return self.partition, self.writer, self.start_offset
