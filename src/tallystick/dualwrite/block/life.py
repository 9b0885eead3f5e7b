"""The life of a writer: its state, the call that uses it, and the process that it belongs to.

A writer is in one state. After anything that left a transaction open it is UNSETTLED, and only recovery is
legal; it discards the producers and creates new ones, so there is one way to recover.
"""

from collections.abc import Mapping
from enum import Enum
from threading import Lock
from typing import Final

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.block.offsets import OffsetsOfBlock
from tallystick.dualwrite.errors import NotRecovered, Outcome, WriteInDoubt
from tallystick.dualwrite.forks import OwningProcess
from tallystick.dualwrite.rules.model import StoredState


class WriterState(Enum):
    """The state of a writer. The value is its text in errors."""

    NEW = "it has not been recovered"
    READY = "it is ready"
    IN_TRANSACTION = "it is in a transaction"
    RECOVERING = "it is being recovered"
    UNSETTLED = "a transaction before was left open"
    CLOSED = "it is closed"


_BUSY: Final = frozenset({WriterState.IN_TRANSACTION, WriterState.RECOVERING})


class BlockOutcome:
    """Whether both sides of a block are committed, as far as known."""

    def __init__(self) -> None:
        self.value = Outcome.NOT_COMMITTED
        self.offsets = OffsetsOfBlock()
        self.doubt: WriteInDoubt | None = None  # raised by the block's own commit, until a recovery
        self._states_at_commit: Mapping[str, PreparedTxnState] = {}
        self._pending_doubt: WriteInDoubt | None = None

    @property
    def states(self) -> Mapping[str, PreparedTxnState]:
        """The transactions that the rows of the commit name, by id; empty before it."""
        return self._states_at_commit

    def start_block(self) -> None:
        """Start a block, of which nothing is committed. Its outcome is not that of offsets sent before."""
        self.value, self._states_at_commit, self.doubt = Outcome.NOT_COMMITTED, {}, None
        self.offsets.clear()

    def start_commit(self, states: Mapping[str, PreparedTxnState]) -> None:
        """Treat the outcome as unknown from before COMMIT is sent until its answer is there [DW-3].

        Args:
            states: the transactions that the rows name, by id.
        """
        self._states_at_commit, self.value = states, Outcome.UNKNOWN

    def create_doubt(self, text: str) -> WriteInDoubt:
        """Create the error to raise; the next recovery sets its outcome."""
        self.doubt = self._pending_doubt = WriteInDoubt(text, self._states_at_commit)
        return self._pending_doubt

    def resolve(self, rows: Mapping[str, StoredState], rows_before: Mapping[str, StoredState | None]) -> None:
        """Determine the outcome of the transaction in doubt from the rows, which are all claimed.

        It is committed if every row names it. It is not, and never will be, if a row is as it was before. A
        row of another writer, which held the id in between, may follow either outcome: that stays UNKNOWN.

        Args:
            rows: the rows as they are now, by id.
            rows_before: the rows as this writer last saw them committed.
        """
        doubt, self._pending_doubt, self.doubt = self._pending_doubt, None, None
        states = self._states_at_commit if doubt is None else doubt.states
        if not states:
            return
        outcome = Outcome.UNKNOWN
        if all(rows[each].state == state for each, state in states.items()):
            outcome = Outcome.COMMITTED
        elif any(
            (before := rows_before[each]) is not None and rows[each].state == before.state for each in states
        ):
            outcome = Outcome.NOT_COMMITTED
        if doubt is not None and outcome is not Outcome.UNKNOWN:
            doubt.set_outcome(outcome)
        if self.value is Outcome.UNKNOWN:
            self.value = outcome
        self.apply_to_offsets()
        if self.value is Outcome.UNKNOWN:
            self.offsets.report_unknown()

    def apply_to_offsets(self) -> None:
        """Set where the consumers continue whose offsets were sent. Idempotent."""
        self.offsets.apply_outcome(self.value)


class WriterLife:
    """The state of one writer. Calls enter and leave it; one at a time, and in one process."""

    def __init__(self, ids_text: str) -> None:
        """Begin a writer's life.

        Args:
            ids_text: its transactional ids, for errors.
        """
        self.ids_text = ids_text
        self.state = WriterState.NEW
        self._owning_process = OwningProcess()
        self._lock = Lock()
        self._block: object = None

    def enter(self, into: WriterState, *allowed: WriterState, block: object) -> None:
        """Reserve the writer for `block`. Raises: NotRecovered unless its state is an allowed one."""
        self.check_process()  # first: after fork() the lock may be held by a thread that does not exist here
        with self._lock:
            if self.state not in allowed:
                raise NotRecovered(f"{self.ids_text}: {self.explain_state()}")
            self._owning_process.claim_process(self.ids_text)
            self._block = block
            self.state = into

    def is_used_by(self, block: object) -> bool:
        """Return whether `block` is the call that entered last."""
        return self._block is block

    def mark_unsettled(self) -> None:
        """Require a recovery if a call has left in the middle of a recipe."""
        if self.is_busy:
            self.state = WriterState.UNSETTLED

    @property
    def is_busy(self) -> bool:
        """Whether a transaction or a recovery is running."""
        return self.state in _BUSY

    @property
    def is_ready(self) -> bool:
        """Whether a transaction can begin in this process."""
        return self.state is WriterState.READY and not self.is_forked_child

    @property
    def is_forked_child(self) -> bool:
        """Whether this process is a fork of the one that the writer belongs to."""
        return self._owning_process.is_forked_child

    def claim_process(self) -> None:
        """Make this process the writer's. Raises: ManagedByWriter in a forked child."""
        self._owning_process.claim_process(f"{self.ids_text}: this writer")

    def check_process(self) -> None:
        """Raise ManagedByWriter in a forked child of the process that uses this writer."""
        self._owning_process.check_process(f"{self.ids_text}: this writer")

    def explain_state(self) -> str:
        """Return what the state means for a call that it refuses."""
        match self.state:
            case WriterState.NEW | WriterState.UNSETTLED:
                return f"{self.state.value}: call recover() first"
            case WriterState.IN_TRANSACTION:
                return "it is in a transaction, and has one at a time; a WriterPool has more"
            case state:
                return str(state.value)


def count_writer(life: WriterLife, outcome: BlockOutcome) -> dict[str, float]:
    """Return a writer's state as numbers; those of several writers may be added.

    While the database commits, the outcome is not known either, but no recovery is needed for it.
    """
    if life.state is WriterState.CLOSED or life.is_forked_child:
        return {"writers": 0, "writers-in-doubt": 0, "writers-unsettled": 0}
    is_unsettled = life.state is WriterState.UNSETTLED
    is_in_doubt = is_unsettled and outcome.value is Outcome.UNKNOWN
    return {"writers": 1, "writers-in-doubt": is_in_doubt, "writers-unsettled": is_unsettled}
