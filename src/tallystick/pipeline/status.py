"""Decided and undecided batches under a pipeline's prefixes, read from the cluster beside the queries."""

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen
from tallystick.spark.protocol.coordinator import Standing
from tallystick.spark.protocol.decide import Fate
from tallystick.spark.sink.context import Station


@frozen(kw_only=True)
class Decided:
    """The state of a prefix.

    batch     last decided batch; None before the first
    mode      mode of its transactions
    in_doubt  number of open transactions, of the running batch or left by a crashed one
    """

    batch: int | None
    mode: str
    decided_ms: int | None
    in_doubt: int


class Watch:
    """A repeatable view of the state of one output's prefix.

    It changes nothing, except that it creates the decisions topic if missing. `close` ends its connections.
    """

    def __init__(self, station: Station) -> None:
        self._station = station

    def look(self) -> Decided | None:
        """Return the current state; None if the cluster did not answer."""
        try:
            return decided(self._station.run(self._station.coordinator.inspect(), "look"))
        except TallystickError:
            return None

    def close(self) -> None:
        self._station.close()


def decided(standing: Standing) -> Decided:
    last = standing.decision
    return Decided(
        batch=None if last is None else last.batch_id,
        mode="" if last is None else last.mode,
        decided_ms=None if last is None else last.decided_ms,
        in_doubt=len(standing.undecided) + sum(fate is Fate.OPEN for fate in standing.fates.values()),
    )
