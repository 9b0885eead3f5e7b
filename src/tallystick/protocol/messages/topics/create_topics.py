"""CreateTopics (19): create topics, or only validate the request."""

import uuid
from typing import Annotated

from tallystick.protocol.primitives import NIL
from tallystick.protocol.wire import BOOL, INT8, INT16, INT32, STRING, UUID, array, message, struct, wire


@struct
class CreatableReplicaAssignment:
    partition_index: Annotated[int, wire(INT32, "2+")]
    broker_ids: Annotated[tuple[int, ...], wire(array(INT32), "2+")] = ()


@struct
class CreatableTopicConfig:
    name: Annotated[str, wire(STRING, "2+")]
    value: Annotated[str | None, wire(STRING, "2+", nullable="2+")]


@struct
class CreatableTopic:
    name: Annotated[str, wire(STRING, "2+")]
    # -1: the broker's default, or as many as `assignments` has.
    num_partitions: Annotated[int, wire(INT32, "2+")]
    replication_factor: Annotated[int, wire(INT16, "2+")]  # -1 likewise
    assignments: Annotated[
        tuple[CreatableReplicaAssignment, ...], wire(array(CreatableReplicaAssignment), "2+")
    ] = ()
    configs: Annotated[tuple[CreatableTopicConfig, ...], wire(array(CreatableTopicConfig), "2+")] = ()


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Topics to create; a refused topic does not stop the others.

    From version 4 on, -1 partitions or replicas mean the broker's default (KIP-464).

    Source: Kafka CreateTopicsRequest.
    """

    topics: Annotated[tuple[CreatableTopic, ...], wire(array(CreatableTopic), "2+")] = ()
    timeout_ms: Annotated[int, wire(INT32, "2+")] = 60_000
    validate_only: Annotated[bool, wire(BOOL, "2+")] = False


@struct
class CreatableTopicConfigs:
    name: Annotated[str, wire(STRING, "5+")]
    value: Annotated[str | None, wire(STRING, "5+", nullable="5+")]
    read_only: Annotated[bool, wire(BOOL, "5+")]
    config_source: Annotated[int, wire(INT8, "5+")] = -1  # see DescribeConfigs
    is_sensitive: Annotated[bool, wire(BOOL, "5+")]


@struct
class CreatableTopicResult:
    name: Annotated[str, wire(STRING, "2+")]
    topic_id: Annotated[uuid.UUID, wire(UUID, "7+", ignorable=True)] = NIL
    error_code: Annotated[int, wire(INT16, "2+")] = 0
    error_message: Annotated[str | None, wire(STRING, "2+", nullable="2+")] = None
    # The error because of which `configs` is null.
    topic_config_error_code: Annotated[int, wire(INT16, "5+", tag=0, ignorable=True)] = 0
    num_partitions: Annotated[int, wire(INT32, "5+", ignorable=True)] = -1
    replication_factor: Annotated[int, wire(INT16, "5+", ignorable=True)] = -1
    configs: Annotated[
        tuple[CreatableTopicConfigs, ...] | None,
        wire(array(CreatableTopicConfigs), "5+", nullable="5+", ignorable=True),
    ] = ()


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """One entry per topic; 5 adds partitions, replicas and configs (KIP-525), 7 the topic id (KIP-516).

    Source: Kafka CreateTopicsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "2+")] = 0
    topics: Annotated[tuple[CreatableTopicResult, ...], wire(array(CreatableTopicResult), "2+")] = ()
