"""Answers of a coordinator when its topic did not take a record."""

import logging
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TypeVar

from tallystick.kernel.check import InvariantBroken
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.storage.disk.fs import LogOffline, StorageFailure

_log = logging.getLogger("tallystick.coordinators")

AppendT = TypeVar("AppendT")
DecisionT = TypeVar("DecisionT")

# The answer tells the client either to find the coordinator again and retry, or that retrying is useless.
# Source: CoordinatorOperationExceptionHelper; TransactionStateManager.appendTransactionToLog.
_CLIENT_ERRORS: Final = MappingProxyType(
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


def translate_append_error(refusal: Reject) -> Reject:
    """Map an error of the coordinator's log to the coordinator's answer."""
    return Reject(_CLIENT_ERRORS.get(refusal.code, refusal.code), refusal.reason)


def decide_or_refuse(decide: Callable[[], DecisionT | Reject]) -> DecisionT | Reject:
    """Decide one command; return a Reject if that fails.

    A failure changes nothing and affects no other command.

    Raises:
        InvariantBroken: the state itself is not to be trusted.
    """
    try:
        return decide()
    except InvariantBroken:
        raise
    except Exception as exc:
        _log.exception("a command failed and was refused; nothing was changed: %s", exc)
        return Reject(ErrorCode.UNKNOWN_SERVER_ERROR, f"the command failed; nothing was changed: {exc}")


def append_or_refuse(
    encode: Callable[[], bytes], append: Callable[[bytes], AppendT | Reject]
) -> AppendT | Reject:
    """Encode, then append. After a Reject nothing is in the log and no state has to change.

    Raises:
        Exception: any error of `append` after which it is unknown whether the log has the batch.
    """
    try:
        batch = encode()
    except Exception as exc:
        # No record was written, so no state is in doubt: only this command is refused.
        _log.exception(
            "a record could not be encoded, so its command was refused; nothing was changed: %s", exc
        )
        return Reject(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"the record could not be encoded; nothing was changed: {exc}"
        )
    try:
        return append(batch)
    except LogOffline:
        raise  # unknown whether the log has the batch: its partition is lost, and read back
    except StorageFailure as exc:
        # The disk is full, or the write failed and was rolled back: nothing was appended.
        return Reject(ErrorCode.KAFKA_STORAGE_ERROR, str(exc))
