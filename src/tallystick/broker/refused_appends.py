"""What a coordinator answers when its topic did not take a record."""

from types import MappingProxyType
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject

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
