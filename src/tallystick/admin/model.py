"""Transactions, producers and groups as administration calls return them. The wire's -1 is None here.

Source: KIP-664; the private tags of docs/formats/private-tags.md.
"""

from collections.abc import Mapping
from enum import IntEnum

from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.transaction_history import TransactionTransition

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class TransactionListing(Value, kw_only=True):
    """A transactional id in a coordinator's list."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class AbortCause(IntEnum):
    """Reason for an abort that the client did not ask for."""

    TERMINATED = 1
    TIMED_OUT = 2
    MARKER = 3


class ForcedOutcome(Value, kw_only=True):
    """A transaction that was aborted, but not by its client. Only tallystick's broker reports it."""

    writer: ProducerIdAndEpoch
    cause: AbortCause | int  # a plain number: from a newer version
    at_ms: int
    partition: TopicPartition | None  # only with MARKER, which aborts in one partition


class TransactionDescription(Value, kw_only=True):
    """A transactional id as its coordinator describes it."""

    transactional_id: str
    coordinator: int
    state: str  # Kafka's name
    writer: ProducerIdAndEpoch  # producer id and epoch of the data; once decided, those of the markers
    timeout_ms: int | None  # None: two-phase commit, which never times out
    started_ms: int | None
    partitions: frozenset[TopicPartition]  # without a marker yet
    superseded: ProducerIdAndEpoch | None = (
        None  # the owner's previous id and epoch; tallystick's broker only
    )
    forced_outcomes: tuple[ForcedOutcome, ...] = ()
    # What has happened to the id, oldest first; None: not asked for, or the broker keeps none (Apache Kafka)
    history: tuple[TransactionTransition, ...] | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether the transaction may be prepared, so that only an external decision should end it."""
        return self.state == "Ongoing" and self.timeout_ms is None


class ProducerState(Value, kw_only=True):
    """A producer's state in a partition."""

    identity: ProducerIdAndEpoch
    last_sequence: int | None
    last_timestamp_ms: int | None
    coordinator_epoch: int | None  # of its last marker
    txn_start_offset: int | None  # None: nothing is open


class OpenTransaction(Value, kw_only=True):
    """An open transaction as a partition's leader sees it."""

    partition: TopicPartition
    writer: ProducerIdAndEpoch
    coordinator_epoch: int | None  # of the last marker of this producer; None: there was none
    start_offset: int
    last_timestamp_ms: int | None  # of its last record, chosen by the producer

    @property
    def key(self) -> tuple[TopicPartition, ProducerIdAndEpoch, int]:
        """Identity of the transaction, constant while it is open."""
        return self.partition, self.writer, self.start_offset


class GroupListing(Value, kw_only=True):
    """A group in a coordinator's list; `state` and `type` are "" if the broker's version omits them."""

    group_id: str
    coordinator: int
    protocol_type: str
    state: str
    type: str


class MemberDescription(Value, kw_only=True):
    """A member of a group and its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class GroupDescription(Value, kw_only=True):
    """A group. `assignor` is "" until it has been chosen."""

    group_id: str
    coordinator: int
    state: str
    type: str
    assignor: str
    members: tuple[MemberDescription, ...]


class GroupOffsets(Value, kw_only=True):
    """The offsets of a group.

    committed  by partition
    pending    those of them for which a transaction has written a new offset and is not decided yet (KIP-447)
    """

    committed: Mapping[TopicPartition, OffsetAndMetadata]
    pending: frozenset[TopicPartition] = frozenset()
