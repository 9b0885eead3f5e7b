"""Requirements of each role: APIs, and operations on resources (docs/security.md). Pure."""

from enum import StrEnum
from typing import Final

from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation as Operation
from tallystick.protocol.acls import AclResource as Type
from tallystick.protocol.apis import ApiKey


class Role(StrEnum):
    """Role that the principal is to have."""

    WRITER = "writer"
    RECOVERY = "recovery"
    SPARK = "spark"
    TOOLS = "tools"


class Need(Value):
    """An operation on every resource of a type that the user named."""

    type: Type
    operation: Operation


_ENDING: Final = (
    Need(Type.TRANSACTIONAL_ID, Operation.WRITE),
    Need(Type.TRANSACTIONAL_ID, Operation.TWO_PHASE_COMMIT),
)
NEEDS: Final = {
    Role.WRITER: (*_ENDING, Need(Type.TOPIC, Operation.WRITE), Need(Type.GROUP, Operation.READ)),
    Role.RECOVERY: _ENDING,
    Role.SPARK: (
        *_ENDING,
        Need(Type.TOPIC, Operation.WRITE),
        Need(Type.TOPIC, Operation.READ),
        Need(Type.GROUP, Operation.READ),
    ),
    Role.TOOLS: (
        Need(Type.TRANSACTIONAL_ID, Operation.DESCRIBE),
        Need(Type.TOPIC, Operation.READ),
        Need(Type.CLUSTER, Operation.ALTER),
    ),
}

_TRANSACTIONAL: Final = (
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.END_TXN,
)
APIS: Final = {
    Role.WRITER: (*_TRANSACTIONAL, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT),
    Role.RECOVERY: (*_TRANSACTIONAL, ApiKey.DESCRIBE_TRANSACTIONS),
    Role.SPARK: (
        *_TRANSACTIONAL,
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.DESCRIBE_TRANSACTIONS,
    ),
    Role.TOOLS: (
        ApiKey.METADATA,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.WRITE_TXN_MARKERS,
    ),
}
