"""Decided and undecided batches under a pipeline's prefixes, read from the cluster beside the queries."""

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value
from tallystick.spark.protocol.coordinator import PrefixStatus
from tallystick.spark.protocol.decide import ParticipantOutcome
from tallystick.spark.sink.driver.context import SinkContext


class DecisionStatus(Value, kw_only=True):
    """The state of a prefix.

    last_batch      last decided batch; None before the first
    mode            mode of its transactions
    in_doubt_count  number of open transactions, of the running batch or left by a crashed one
    """

    last_batch: int | None
    mode: str
    decided_ms: int | None
    in_doubt_count: int


class DecisionWatch:
    """A repeatable view of the state of one output's prefix.

    It changes nothing, except that it creates the decisions topic if missing. `close` ends its connections.
    """

    def __init__(self, station: SinkContext) -> None:
        self._context = station

    def read_status(self) -> DecisionStatus | None:
        """Return the current state; None if the cluster did not answer."""
        try:
            return to_decision_status(self._context.run(self._context.coordinator.inspect(), "look"))
        except TallystickError:
            return None

    def close(self) -> None:
        self._context.close()


def to_decision_status(standing: PrefixStatus) -> DecisionStatus:
    last = standing.decision
    return DecisionStatus(
        last_batch=None if last is None else last.batch_id,
        mode="" if last is None else last.mode,
        decided_ms=None if last is None else last.decided_ms,
        in_doubt_count=len(standing.undecided_ids)
        + sum(fate is ParticipantOutcome.OPEN for fate in standing.outcomes.values()),
    )
