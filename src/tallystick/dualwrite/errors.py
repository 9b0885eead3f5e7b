"""What a dual write raises besides what its two halves raise. Each says what became of both.

    DualWriteError
      Fenced            another writer has claimed the id: neither half was committed
      NotRecovered      recover() comes first; nothing was begun
      TooLate           the block took too long for its mode: neither half was committed
      NotYours          a half that the writer owns was ended, or would have been; or a fork's child uses it
      UnsafeStore       the database would lose what it acknowledged; nothing was begun
      BadStore          the table, path or family is missing or of another version
      BadRow            the row of an id is not what this library writes
      NotCommitted      (from stores) the database certainly did not commit; a writer raises its cause
      CommitUnknown     (from stores) the answer to a database commit was lost; a writer raises InDoubt
      Halted            recovery found what it must not decide; nothing was changed in Kafka
        LogBehind         the cluster has lost a transaction that it acknowledged
        ForeignCluster    the row was recorded with another cluster
        DatabaseBehind    the database has lost a transaction that it acknowledged, and Kafka has committed it
      Torn              the database committed, and the cluster has aborted its half: to be repaired by hand
      NotVisible        both halves are committed; whether readers see it could not be seen in time
      DataLoss          records that follow the database's offset are no longer in the log
      NoFreeId          every id of a pool was in use for too long
    InDoubt             (kernel) a commit was sent, and its outcome is not known: recover() finds out
      WriteInDoubt      the same of a dual write, with what to ask for: `outcome()`

All of them pickle.
"""

from collections.abc import Mapping
from enum import Enum

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.errors import InDoubt, TallystickError


class DualWriteError(TallystickError):
    """Root of these."""


class Fenced(DualWriteError):
    """Another writer has claimed this transactional id in the database. Close this one, or recover it."""

    def __init__(self, transactional_id: str, owner: str, found: str = "") -> None:
        super().__init__(transactional_id, owner, found)
        self.transactional_id, self.owner, self.found = transactional_id, owner, found

    def __str__(self) -> str:
        now = f"it is now {self.found}" if self.found else "it is another now"
        return (
            f"{self.transactional_id!r} was claimed by another writer: the owner of its row was "
            f"{self.owner}, {now}; neither half was committed"
        )


class NotRecovered(DualWriteError):
    """A transaction was asked for before recover(), or after an outcome that only recover() can settle."""


class TooLate(DualWriteError):
    """The cluster may be about to abort by transaction.timeout.ms: both halves were taken back in time."""

    def __init__(self, transactional_id: str, took_ms: int, timeout_ms: int) -> None:
        super().__init__(transactional_id, took_ms, timeout_ms)
        self.transactional_id, self.took_ms, self.timeout_ms = transactional_id, took_ms, timeout_ms

    def __str__(self) -> str:
        return (
            f"{self.transactional_id!r}: the transaction has taken {self.took_ms} ms of the "
            f"{self.timeout_ms} after which the cluster may abort it; neither half was committed. Raise "
            "transaction.timeout.ms, or do less in the block"
        )


class NotYours(DualWriteError):
    """The writer commits both halves: inside its block the session and the connection are not committed."""


class UnsafeStore(DualWriteError):
    """A database set up to lose what it acknowledged: `setting` has `found`, and `wanted` would be safe.

    risk  what allows exactly this in `allow_unsafe_durability`; empty where nothing but `wanted` will do
    """

    def __init__(self, setting: str, found: str, wanted: str, risk: str = "") -> None:
        super().__init__(setting, found, wanted, risk)
        self.setting, self.found, self.wanted, self.risk = setting, found, wanted, risk

    def __str__(self) -> str:
        why = (
            f"{self.setting} is {self.found}; {self.wanted} is needed: after a crash of the database the "
            "Kafka half would be committed and the rows gone"
        )
        if not self.risk:
            return why
        allowing = f'allow_unsafe_durability={{"{self.risk}"}}'
        return (
            f"{why}. Where the database is known to keep its commits all the same, {allowing} of its store "
            "allows this setting alone"
        )


class BadStore(DualWriteError):
    """The place of the rows is missing or of another version; `create()` makes it."""


class BadRow(DualWriteError):
    """The row of `transactional_id` cannot be read. Never take it for an empty one."""

    def __init__(self, transactional_id: str, why: str) -> None:
        super().__init__(transactional_id, why)
        self.transactional_id, self.why = transactional_id, why

    def __str__(self) -> str:
        return f"the stored state of {self.transactional_id!r} cannot be read: {self.why}"


class NotCommitted(DualWriteError):
    """A store's word that COMMIT was not sent, or was refused: the transaction had no effect [DW-3].

    Without this word a writer takes the outcome for unknown, whatever was raised.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return f"the database did not commit: {self.cause}"


class CommitUnknown(DualWriteError):
    """The database was told to commit and did not answer: only a claim, and then a look, can tell."""


class Outcome(Enum):
    """What became of a dual write whose end was in doubt."""

    COMMITTED = "both halves are committed, or will be by recover()"
    NOT_COMMITTED = "neither half is committed"
    UNKNOWN = "not known"


class WriteInDoubt(InDoubt):
    """The end of a dual write is not known. `recover()` finds out; from then on `outcome()` tells.

    states  the Kafka transaction of each transactional id; the database names them if it has committed.
            Without records there is none, and nothing can tell whether the rows were committed.
    """

    def __init__(self, text: str, states: Mapping[str, PreparedTxnState]) -> None:
        super().__init__(text, states)
        self.states = states
        self._outcome = Outcome.UNKNOWN

    def __str__(self) -> str:
        return str(self.args[0])

    def outcome(self) -> Outcome:
        """What became of it, as far as this writer has found out. Never repeat what is UNKNOWN."""
        return self._outcome

    def settle(self, outcome: Outcome) -> None:
        """What a recovery, or the commit itself, has found out; the first word counts."""
        if self._outcome is Outcome.UNKNOWN:
            self._outcome = outcome


class Halted(DualWriteError):
    """Recovery found what neither commit nor abort would put right. Kafka was not touched."""


class LogBehind(Halted):
    """The cluster shows less than it once acknowledged: restored from a backup, or data was lost."""


class ForeignCluster(Halted):
    """The row was recorded with another cluster than the one the producer is connected to."""


class DatabaseBehind(Halted):
    """The database has lost a commit that it acknowledged, and Kafka has the records of it.

    After a failover to an asynchronous replica, or a restored backup. Write those rows again, or make up for
    the records; then recover(accept_torn=True).
    """


class Torn(DualWriteError):
    """The rows are committed and their records are not: the cluster ended the transaction by itself.

    By transaction.timeout.ms in a mode weaker than two-phase commit, or by an operator. Send those records
    again, or take the rows back.
    """


class NotVisible(DualWriteError):
    """Both halves are committed; that the markers are there for readers to see could not be seen in time."""


class DataLoss(DualWriteError):
    """The log does not have the offset that the database wants next: nothing of the partition was read.

    Attributes: group; partition, its name; offset, the database's; begin, end: what the log has now.
    """

    def __init__(self, group: str, partition: str, offset: int, begin: int, end: int) -> None:
        super().__init__(group, partition, offset, begin, end)
        self.group, self.partition = group, partition
        self.offset, self.begin, self.end = offset, begin, end

    def __str__(self) -> str:
        if self.offset < self.begin:
            what = (
                f"records {self.offset} to {self.begin - 1} are gone (retention, or DeleteRecords), and "
                "their rows will never be written"
            )
        else:
            what = (
                f"the log ends at {self.end}: it was cut, or the topic was deleted and made again, and what "
                "follows is not what followed before"
            )
        return (
            f"{self.group!r} in {self.partition}: the database goes on at offset {self.offset}, and {what}. "
            'Put the offset in the database right, or pass on_data_loss="skip"'
        )


class NoFreeId(DualWriteError):
    """Every id of the pool was in use for as long as the caller would wait."""
