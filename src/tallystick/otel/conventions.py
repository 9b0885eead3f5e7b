"""Names of spans and attributes. Pure.

Those of messaging and databases are OpenTelemetry's, of version 1.44.0 of its semantic conventions, where the
ones for messaging are in development and those for databases stable. Transactions, outcomes and prepared
states are in none of them: our own names begin with `tallystick.`.

Source: open-telemetry/semantic-conventions v1.44.0, docs/messaging/messaging-spans.md,
    docs/messaging/kafka.md, docs/db/database-spans.md.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tallystick.dualwrite.errors import HeuristicMixed, Outcome, WriteInDoubt
from tallystick.kernel.errors import InDoubt

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
OFFSET: Final = "messaging.kafka.offset"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
GROUP: Final = "messaging.consumer.group.name"
TOMBSTONE: Final = "messaging.kafka.message.tombstone"
DATABASE_SYSTEM: Final = "db.system.name"
DATABASE_OPERATION: Final = "db.operation.name"
ERROR_TYPE: Final = "error.type"

TRANSACTION_ID: Final = "tallystick.transaction.id"
PREPARED_STATE: Final = "tallystick.transaction.prepared_state"
OUTCOME: Final = "tallystick.outcome"
FINDING: Final = "tallystick.recovery.finding"
ACTION: Final = "tallystick.recovery.action"
QUERY_ID: Final = "tallystick.spark.query_id"
BATCH_ID: Final = "tallystick.spark.batch_id"
ROWS: Final = "tallystick.spark.rows"
PARTICIPANTS: Final = "tallystick.spark.transactions"

LINKS_MAX: Final = 128
"""Number of links of one span: the default limit of the SDKs, which drop what is beyond."""

Attributes = dict[str, str | int | bool]


class TraceOutcome(Enum):
    """Values of `tallystick.outcome`."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_DOUBT = "in_doubt"  # the answer to a commit is missing: a recovery finds out
    UNKNOWN = "unknown"  # nothing tells any more how it ended
    TORN = "torn"  # the sides differ for good


CALL_NAMES: Final[Mapping[str, str]] = {
    "init": "init_transactions",
    "begin": "init_transactions",  # an id that has to be initialised again comes first
    "open": "begin_transaction",
    "send-offsets": "send_offsets_to_transaction",
    "prepare": "prepare_transaction",
    "commit": "commit_transaction",
    "abort": "abort_transaction",
    "complete": "complete_transaction",
}
"""The client's calls on a transaction, by Kafka's names."""

DATABASE_OPERATIONS: Final[Mapping[str, str]] = {
    "begin database": "BEGIN",
    "commit database": "COMMIT",
    "roll back": "ROLLBACK",
    "begin settling": "BEGIN",
    "commit settled": "COMMIT",
}
"""Steps that are one command of a database, which no instrumentation of its driver reports."""

DATABASE_STEPS: Final = frozenset(
    {
        "check owner",
        "claim",
        "claim key",
        "move offsets",
        "read",
        "read offsets",
        "record",
        "settle",
        "store result",
    }
)
"""Steps that run statements; an instrumentation of the driver reports each of them below the step."""


def build_messaging_attributes(
    name: str, kind: str, topic: str | None = None, *, client_id: str = "", count: int | None = None
) -> Attributes:
    """Return the attributes of a messaging span.

    Args:
        kind: create, send, receive, process or settle; empty for a call that is none of them.
        count: of a call for many records.
    """
    attributes: Attributes = {SYSTEM: "kafka", OPERATION_NAME: name}
    if kind:
        attributes[OPERATION_TYPE] = kind
    if topic is not None:
        attributes[DESTINATION] = topic
    if client_id:
        attributes[CLIENT_ID] = client_id
    if count is not None:
        attributes[MESSAGE_COUNT] = count
    return attributes


def name_span(operation: str, topic: str | None) -> str:
    """Return the name of a messaging span: `{messaging.operation.name} {destination}`."""
    return operation if topic is None else f"{operation} {topic}"


def assess_block(exc: BaseException | None, value: Outcome, *, has_begun: bool) -> TraceOutcome:
    """Return the outcome of a writer's block.

    Args:
        exc: what it raised.
        value: the outcome of the writer's last block; of this one once it has begun.
    """
    if isinstance(exc, HeuristicMixed):
        return TraceOutcome.TORN
    if not has_begun or value is Outcome.NOT_COMMITTED:
        return TraceOutcome.ABORTED
    return TraceOutcome.COMMITTED if value is Outcome.COMMITTED else TraceOutcome.IN_DOUBT


def assess_consumed(exc: BaseException | None) -> TraceOutcome:
    """Return the outcome of consumed records, by what their caller gets."""
    if exc is None:
        return TraceOutcome.COMMITTED
    if isinstance(exc, HeuristicMixed):
        return TraceOutcome.TORN
    if isinstance(exc, WriteInDoubt):
        return assess_block(exc, exc.outcome(), has_begun=True)
    return TraceOutcome.IN_DOUBT if isinstance(exc, InDoubt) else TraceOutcome.ABORTED
