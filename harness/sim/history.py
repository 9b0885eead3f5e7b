"""The history of a run: what clients did and were told, the checkers' only source besides the disk."""

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from tallystick.kernel.ids import ProducerId, ProducerIdAndEpoch, TopicPartition


@dataclass(slots=True, eq=False)
class SimTxn:
    """One transaction, as its clients know it.

    writer              producer id and epoch of its records; None before the first
    records             the texts that were sent, each unique, with their partitions
    offset              what is committed for the owner's group with it
    acknowledged        texts the broker has taken
    commit_requested    a client with the right to do so has sent EndTxn with commit
    reported_outcome    how it ended, according to the broker: True for commit
    aborted_partitions  partitions in which an administrator has ended it, as far as it is known
    """

    number: int
    owner: str
    version: int
    two_phase: bool
    writer: ProducerIdAndEpoch | None = None
    records: dict[str, TopicPartition] = field(default_factory=dict)
    acknowledged_texts: set[str] = field(default_factory=set)
    offset: int | None = None
    offset_acknowledged: bool = False
    commit_requested: bool = False
    reported_outcome: bool | None = None
    aborted_partitions: set[TopicPartition] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.owner} transaction {self.number} ({self.writer})"


@dataclass(slots=True)
class IssuedIdentities:
    """The producer ids and epochs one transactional id was given, in the order of the broker's answers."""

    newest: ProducerIdAndEpoch | None = None
    before: ProducerIdAndEpoch | None = None
    producer_ids: set[ProducerId] = field(default_factory=set)


@dataclass(slots=True)
class History:
    """The events of one run.

    by_writer           transactions of version 2, where a producer epoch names a single one (KIP-890)
    claimed_identities  producer epochs that InitProducerId gave to new incarnations
    reused_identities   producer epochs that name two transactions or incarnations, possible after a disk lost
                        data
    partly_aborted      producer epochs whose transaction an administrator has ended in one partition
    may_be_deleted      texts that were deleted on purpose, or may have been
    deleted_texts       texts that were certainly deleted
    sent_ms             when each text was sent, which is its timestamp
    answered_ms         when its client got the answer: it is not sent again
    violations          violations found during the run
    version_1_unproven  whether transactions before version 2 go unchecked: a start that cannot tell a topic
                        from its successor may write a former transaction's marker again, and there the next
                        transaction has the same producer epoch (docs/skipped.md)
    """

    txns: list[SimTxn] = field(default_factory=list)
    by_writer: dict[ProducerIdAndEpoch, SimTxn] = field(default_factory=dict)
    issued_identities: dict[str, IssuedIdentities] = field(default_factory=dict)
    claimed_identities: set[ProducerIdAndEpoch] = field(default_factory=set)
    reused_identities: set[ProducerIdAndEpoch] = field(default_factory=set)
    partly_aborted: set[ProducerIdAndEpoch] = field(default_factory=set)
    may_be_deleted: set[str] = field(default_factory=set)
    deleted_texts: set[str] = field(default_factory=set)
    sent_ms: dict[str, int] = field(default_factory=dict)
    answered_ms: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    version_1_unproven: bool = False

    def begin(self, owner: str, version: int, *, two_phase: bool) -> SimTxn:
        txn = SimTxn(len(self.txns), owner, version, two_phase)
        self.txns.append(txn)
        return txn

    def set_writer(self, txn: SimTxn, writer: ProducerIdAndEpoch) -> None:
        """Set the writer of a transaction at its first record."""
        txn.writer = writer
        if txn.version >= 2 and self.by_writer.setdefault(writer, txn) is not txn:
            self.reused_identities.add(writer)

    def guaranteed_txns(self) -> Iterator[SimTxn]:
        """Yield the transactions whose outcome the broker guarantees in this run."""
        return (txn for txn in self.txns if txn.version >= 2 or not self.version_1_unproven)

    def texts_of(self, partitions: Container[TopicPartition], *, acknowledged_only: bool = False) -> set[str]:
        """Return the texts sent to some partitions, or only those the broker has acknowledged."""
        return {
            text
            for txn in self.txns
            for text, partition in txn.records.items()
            if partition in partitions and (not acknowledged_only or text in txn.acknowledged_texts)
        }

    def texts_in_aborted_partitions(self) -> set[str]:
        """Return the texts sent to partitions in which an administrator ended their transaction."""
        return {
            text
            for txn in self.txns
            for text, partition in txn.records.items()
            if partition in txn.aborted_partitions
        }

    def required_texts(self, txn: SimTxn) -> set[str]:
        """Return the acknowledged texts that an administrator has neither deleted nor ended apart."""
        return {
            text
            for text in txn.acknowledged_texts
            if text not in self.may_be_deleted and txn.records[text] not in txn.aborted_partitions
        }

    def note_retention(self, oldest_ms: int) -> None:
        """Note that retention may take what has this timestamp or an earlier one."""
        self.may_be_deleted |= {text for text, sent_ms in self.sent_ms.items() if sent_ms <= oldest_ms}

    def report(self, what: str) -> None:
        """Record a violation."""
        self.violations.append(what)
