"""The console's state: the newest snapshot, joined, with what has changed lately. Pure."""

from tallystick.console.health import Limits
from tallystick.console.joint import JointTransaction, join_views
from tallystick.console.snapshot import Snapshot
from tallystick.kernel.value import Value


class ConsoleState(Value, kw_only=True):
    """A snapshot and its transactions joined. Never changed: `advance` returns the next one."""

    snapshot: Snapshot = Snapshot()
    joint: tuple[JointTransaction, ...] = ()
    limits: Limits = Limits()

    @property
    def is_first(self) -> bool:
        """Whether nothing has been read yet."""
        return self.snapshot.number == 0


def advance(state: ConsoleState, snapshot: Snapshot) -> ConsoleState:
    """Return the state after the next snapshot."""
    earlier = None if state.is_first else state.joint
    joint = join_views(snapshot, state.limits, earlier)
    return ConsoleState(snapshot=snapshot, joint=joint, limits=state.limits)
