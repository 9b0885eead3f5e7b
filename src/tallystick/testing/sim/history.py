"""What clients did and were told, written down as it happens; the checkers' only source beside the disk."""

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

    by_writer  transactions of version 2: there, a pair names one of them (KIP-890)
    reused     pairs that name two, which a disk that forgot makes possible
    wrong      what was found while it ran
    """

    txns: list[Txn] = field(default_factory=list)
    by_writer: dict[Identity, Txn] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    reused: set[Identity] = field(default_factory=set)
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

    def report(self, what: str) -> None:
        """Something that must not be."""
        self.wrong.append(what)
