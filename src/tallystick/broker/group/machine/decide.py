"""Dispatch of every command to its decision."""

from typing import assert_never

from tallystick.broker.group.machine.commands import (
    DONE,
    Command,
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    Env,
    ExpireOffsets,
    ForgetPartitions,
    Heartbeat,
    Join,
    JoinPhaseTimedOut,
    Leave,
    Revive,
    SessionTimedOut,
    Settle,
    Step,
    Sync,
    SyncPhaseTimedOut,
)
from tallystick.broker.group.machine.join import decide_join
from tallystick.broker.group.machine.leave import (
    decide_join_timeout,
    decide_leave,
    decide_revive,
    decide_session_timeout,
    decide_sync_timeout,
)
from tallystick.broker.group.machine.model import Group
from tallystick.broker.group.machine.offsets import (
    decide_commit,
    decide_commit_in_transaction,
    decide_delete_group,
    decide_delete_offsets,
    decide_expire,
    decide_forget,
)
from tallystick.broker.group.machine.sync import decide_heartbeat, decide_sync
from tallystick.kernel.errors import Reject


def decide(group: Group | None, command: Command, env: Env) -> Step | Reject:
    """Decide what follows from `command`. Reads, never writes.

    Args:
        group: as of now; None when it does not exist.
        env: settings, both clocks, and an unused id.

    Returns:
        A Step for the coordinator; or a Reject, and nothing changes.
    """
    match command:
        case Join():
            return decide_join(group, command, env)
        case Sync():
            return decide_sync(group, command, env)
        case Heartbeat():
            return decide_heartbeat(group, command, env)
        case Leave():
            return decide_leave(group, command, env)
        case CommitOffsets():
            return decide_commit(group, command, env)
        case CommitTxnOffsets():
            return decide_commit_in_transaction(group, command, env)
        case DeleteOffsets():
            return decide_delete_offsets(group, command, env)
        case ForgetPartitions():
            return decide_forget(group, command)
        case DeleteGroup():
            return decide_delete_group(group, command, env)
        case ExpireOffsets():
            return decide_expire(group, env)
        case Settle():
            return Step(then_reply=DONE)
        case Revive():
            return decide_revive(group, env)
        case SessionTimedOut():
            return decide_session_timeout(group, command, env)
        case JoinPhaseTimedOut():
            return decide_join_timeout(group, env)
        case SyncPhaseTimedOut():
            return decide_sync_timeout(group, env)
        case _:
            assert_never(command)
