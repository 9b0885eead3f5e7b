"""All errors of the clients in one place; `tallystick.client.errors` documents each.

    try:
        producer.commit_transaction()
    except errors.AbortRequired:
        producer.abort_transaction()

All are TallystickErrors and can be pickled. `effect` says what may have happened in the cluster.
"""

from tallystick.client.errors import (
    AbortRequired,
    AuthenticationFailed,
    BadAnswer,
    BrokerRefused,
    ClientError,
    Closed,
    CommitRefused,
    ConnectionLost,
    DecisionExpired,
    DeserializationFailed,
    Fenced,
    IdExpired,
    IllegalState,
    InvalidTxnState,
    NotAuthorized,
    NotSupported,
    PositionUnknown,
    RecordUnreadable,
    SerializationFailed,
    TimedOut,
    TlsFailed,
    TooLarge,
    TopicRecreated,
    UnknownTopic,
    Unreachable,
    WokenUp,
)
from tallystick.client.transactions.prepared import BadPreparedTxnState
from tallystick.kernel.errors import Effect, InDoubt, Remedy, TallystickError
from tallystick.kernel.settings import BadConfig

__all__ = [
    "AbortRequired",
    "AuthenticationFailed",
    "BadAnswer",
    "BadConfig",
    "BadPreparedTxnState",
    "BrokerRefused",
    "ClientError",
    "Closed",
    "CommitRefused",
    "ConnectionLost",
    "DecisionExpired",
    "DeserializationFailed",
    "Effect",
    "Fenced",
    "IdExpired",
    "IllegalState",
    "InDoubt",
    "InvalidTxnState",
    "NotAuthorized",
    "NotSupported",
    "PositionUnknown",
    "RecordUnreadable",
    "Remedy",
    "SerializationFailed",
    "TallystickError",
    "TimedOut",
    "TlsFailed",
    "TooLarge",
    "TopicRecreated",
    "UnknownTopic",
    "Unreachable",
    "WokenUp",
]
