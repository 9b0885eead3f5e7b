"""CreatePartitions (37): add partitions to topics."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, STRING, array, message, struct, wire


@struct
class CreatePartitionsAssignment:
    broker_ids: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@struct
class CreatePartitionsTopic:
    name: Annotated[str, wire(STRING, "0+")]
    count: Annotated[int, wire(INT32, "0+")]  # total number, not the number of new ones
    # Null: the broker chooses.
    assignments: Annotated[
        tuple[CreatePartitionsAssignment, ...] | None,
        wire(array(CreatePartitionsAssignment), "0+", nullable="0+"),
    ]


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """The new number of partitions of each topic.

    Source: KIP-195; Kafka CreatePartitionsRequest.
    """

    topics: Annotated[tuple[CreatePartitionsTopic, ...], wire(array(CreatePartitionsTopic), "0+")] = ()
    timeout_ms: Annotated[int, wire(INT32, "0+")]
    validate_only: Annotated[bool, wire(BOOL, "0+")]


@struct
class CreatePartitionsTopicResult:
    name: Annotated[str, wire(STRING, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """One result per topic.

    Source: Kafka CreatePartitionsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    results: Annotated[
        tuple[CreatePartitionsTopicResult, ...], wire(array(CreatePartitionsTopicResult), "0+")
    ] = ()
