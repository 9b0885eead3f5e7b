"""What clients did and were told, written down as it happens; the checkers' only source beside the disk."""

from collections.abc import Container
from dataclasses import dataclass, field

from tallystick.kernel.ids import Identity, ProducerId, TopicPartition


@dataclass(slots=True, eq=False)
class Txn:
    """One transaction, as its clients know it.

    writer        signs its records; None before the first
    records       what was sent, by its text, which no other record has, and where to
    offset        what is committed for the owner's group with it
    acknowledged  texts the broker has taken
    commit_asked  somebody who may has sent EndTxn with commit
    told          how it ended, as the broker said: True for commit
    torn          partitions in which an administrator has ended it, as far as it is known
    """

    number: int
    owner: str
    version: int
    two_phase: bool
    writer: Identity | None = None
    records: dict[str, TopicPartition] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    offset: int | None = None
    offset_acknowledged: bool = False
    commit_asked: bool = False
    told: bool | None = None
    torn: set[TopicPartition] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.owner} transaction {self.number} ({self.writer})"


@dataclass(slots=True)
class Pairs:
    """The identities one transactional id was given, in the order of the broker's answers."""

    newest: Identity | None = None
    before: Identity | None = None
    producer_ids: set[ProducerId] = field(default_factory=set)


@dataclass(slots=True)
class History:
    """Everything of one run.

    by_writer    transactions of version 2: there, a pair names one of them (KIP-890)
    reused       pairs that name two, which a disk that forgot makes possible
    torn         pairs whose transaction an administrator has ended in one partition
    may_go       texts that were deleted on purpose, or may have been
    gone         texts of which it is certain
    sent_ms      when each text was sent, which is its timestamp
    answered_ms  when its client heard of it: it is not sent again
    wrong        what was found while it ran
    """

    txns: list[Txn] = field(default_factory=list)
    by_writer: dict[Identity, Txn] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    reused: set[Identity] = field(default_factory=set)
    torn: set[Identity] = field(default_factory=set)
    may_go: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    sent_ms: dict[str, int] = field(default_factory=dict)
    answered_ms: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def begin(self, owner: str, version: int, *, two_phase: bool) -> Txn:
        txn = Txn(len(self.txns), owner, version, two_phase)
        self.txns.append(txn)
        return txn

    def sign(self, txn: Txn, writer: Identity) -> None:
        """The first record of a transaction is signed."""
        txn.writer = writer
        if txn.version >= 2 and self.by_writer.setdefault(writer, txn) is not txn:
            self.reused.add(writer)

    def texts_of(self, partitions: Container[TopicPartition], *, acknowledged: bool = False) -> set[str]:
        """What was ever sent to some partitions, or of that what the broker has taken."""
        return {
            text
            for txn in self.txns
            for text, partition in txn.records.items()
            if partition in partitions and (not acknowledged or text in txn.acknowledged)
        }

    def texts_of_torn(self) -> set[str]:
        """What was sent to partitions in which an administrator ended its transaction."""
        return {text for txn in self.txns for text, partition in txn.records.items() if partition in txn.torn}

    def must_be_there(self, txn: Txn) -> set[str]:
        """What the broker has taken of a transaction and nobody has deleted or ended apart."""
        return {
            text for text in txn.acknowledged if text not in self.may_go and txn.records[text] not in txn.torn
        }

    def report(self, what: str) -> None:
        """Something that must not be."""
        self.wrong.append(what)
