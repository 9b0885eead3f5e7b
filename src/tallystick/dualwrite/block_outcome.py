"""The outcome of a writer's last block, or of the open one, and what waits for it: offsets and an error."""

from collections.abc import Mapping

from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import Outcome, WriteInDoubt
from tallystick.dualwrite.model import StoredState
from tallystick.dualwrite.offsets import OffsetsOfBlock


class BlockOutcome:
    """Whether both halves of a block are committed, as far as known."""

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
        """Take the outcome for unknown from before COMMIT is sent until its answer is there [DW-3].

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
