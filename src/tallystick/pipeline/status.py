"""What is decided under a pipeline's prefixes, and what is not: asked of the cluster beside the queries."""

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen
from tallystick.spark.protocol.coordinator import Standing
from tallystick.spark.protocol.decide import Fate
from tallystick.spark.sink.context import Station


@frozen(kw_only=True)
class Decided:
    """Where a prefix stands.

    batch     the last one decided; None before the first
    mode      what its transactions rested on
    in_doubt  transactions that are open: of the batch that is running, or left by one that crashed
    """

    batch: int | None
    mode: str
    decided_ms: int | None
    in_doubt: int


class Watch:
    """Looks at one output's prefix, again and again. Changes nothing there, but makes the topic of the
    decisions where it is missing. `close` ends its connections."""

    def __init__(self, station: Station) -> None:
        self._station = station

    def look(self) -> Decided | None:
        """How it stands; None when the cluster did not say."""
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
