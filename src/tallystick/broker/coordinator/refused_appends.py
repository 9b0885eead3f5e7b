"""What a coordinator answers when its topic did not take a record."""

import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypeVar

from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.storage.fs import LogOffline, StorageFailure

_log = logging.getLogger("tallystick.coordinators")

Appended = TypeVar("Appended")
Decided = TypeVar("Decided")

# What a client can do about it: look for the coordinator again and retry, or nothing.
# Source: CoordinatorOperationExceptionHelper; TransactionStateManager.appendTransactionToLog.
_ANSWERED: Final = MappingProxyType(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
        ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
        ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def answered(refused: Reject) -> Reject:
    """The coordinator's answer for what its log said."""
    return Reject(_ANSWERED.get(refused.code, refused.code), refused.reason)


def decide_or_refuse(decide: Callable[[], Decided | Reject]) -> Decided | Reject:
    """Decide one command. A Reject also where that fails: nothing has changed, and nobody else need know.

    Raises: InvariantBroken: the state itself is not to be trusted.
    """
    try:
        return decide()
    except InvariantBroken:
        raise
    except Exception as exc:
        _log.exception("a command cannot be decided, it is refused: %s", exc)
        return Reject(ErrorCode.UNKNOWN_SERVER_ERROR, f"the command cannot be decided: {exc}")


def append_or_refuse(
    encode: Callable[[], bytes], append: Callable[[bytes], Appended | Reject]
) -> Appended | Reject:
    """Encode, then append. A Reject: nothing is in the log, and nothing has to change but the answer.

    Raises: what `append` raises, where nobody knows whether the log has it.
    """
    try:
        batch = encode()
    except Exception as exc:
        # No record was written, so no state is in doubt: the one command is refused, whatever was in it.
        _log.exception("a record cannot be encoded, its command is refused: %s", exc)
        return Reject(ErrorCode.UNKNOWN_SERVER_ERROR, f"the record cannot be encoded: {exc}")
    try:
        return append(batch)
    except LogOffline:
        raise
    except StorageFailure as exc:
        # No room, or a write that failed and was taken back: nothing was appended.
        return Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
