"""Dispatch of every command to its decision."""

from typing import assert_never

from tallystick.broker.group.machine.commands import (
    DONE,
    AwaitPriorCommands,
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteTopicOffsets,
    ExpireJoinPhase,
    ExpireOffsets,
    ExpireSession,
    ExpireSyncPhase,
    GroupCommand,
    GroupEnv,
    GroupStep,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    StartSessions,
    SyncGroup,
)
from tallystick.broker.group.machine.join import decide_join_group
from tallystick.broker.group.machine.leave import (
    decide_join_timeout,
    decide_leave_group,
    decide_session_timeout,
    decide_start_sessions,
    decide_sync_timeout,
)
from tallystick.broker.group.machine.model import ClassicGroup
from tallystick.broker.group.machine.offsets import (
    decide_commit_offsets,
    decide_commit_txn_offsets,
    decide_delete_group,
    decide_delete_offsets,
    decide_delete_topic_offsets,
    decide_expire_offsets,
)
from tallystick.broker.group.machine.sync import decide_heartbeat, decide_sync_group
from tallystick.kernel.errors import Reject


def decide(group: ClassicGroup | None, command: GroupCommand, env: GroupEnv) -> GroupStep | Reject:
    """Decide what follows from `command`. Reads, never writes.

    Args:
        group: as of now; None when it does not exist.
        env: settings, both clocks, and an unused id.

    Returns:
        A Step for the coordinator; or a Reject, and nothing changes.
    """
    match command:
        case JoinGroup():
            return decide_join_group(group, command, env)
        case SyncGroup():
            return decide_sync_group(group, command, env)
        case Heartbeat():
            return decide_heartbeat(group, command, env)
        case LeaveGroup():
            return decide_leave_group(group, command, env)
        case CommitOffsets():
            return decide_commit_offsets(group, command, env)
        case CommitTxnOffsets():
            return decide_commit_txn_offsets(group, command, env)
        case DeleteOffsets():
            return decide_delete_offsets(group, command, env)
        case DeleteTopicOffsets():
            return decide_delete_topic_offsets(group, command)
        case DeleteGroup():
            return decide_delete_group(group, command, env)
        case ExpireOffsets():
            return decide_expire_offsets(group, env)
        case AwaitPriorCommands():
            return GroupStep(reply=DONE)
        case StartSessions():
            return decide_start_sessions(group, env)
        case ExpireSession():
            return decide_session_timeout(group, command, env)
        case ExpireJoinPhase():
            return decide_join_timeout(group, env)
        case ExpireSyncPhase():
            return decide_sync_timeout(group, env)
        case _:
            assert_never(command)
