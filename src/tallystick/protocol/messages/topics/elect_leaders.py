"""ElectLeaders (43): elect the preferred replica, or any live one, as leader of partitions."""

from typing import Annotated

from tallystick.protocol.wire import INT8, INT16, INT32, STRING, array, message, struct, wire


@struct
class TopicPartitions:
    topic: Annotated[str, wire(STRING, "0+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "0+")] = ()


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Partitions to elect a leader for; null means all.

    Election type 0 elects the preferred replica, 1 (unclean) the first live one if no replica is in sync.

    Source: KIP-183, election types KIP-460 (v1); Kafka ElectLeadersRequest.
    """

    election_type: Annotated[int, wire(INT8, "1+")] = 0
    topic_partitions: Annotated[
        tuple[TopicPartitions, ...] | None, wire(array(TopicPartitions), "0+", nullable="0+")
    ] = None
    timeout_ms: Annotated[int, wire(INT32, "0+")] = 60_000


@struct
class PartitionResult:
    partition_id: Annotated[int, wire(INT32, "0+")]
    error_code: Annotated[int, wire(INT16, "0+")] = 0
    error_message: Annotated[str | None, wire(STRING, "0+", nullable="0+")] = None


@struct
class ReplicaElectionResult:
    topic: Annotated[str, wire(STRING, "0+")]
    partition_result: Annotated[tuple[PartitionResult, ...], wire(array(PartitionResult), "0+")] = ()


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """One result per election.

    Source: Kafka ElectLeadersResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "0+")] = 0
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    replica_election_results: Annotated[
        tuple[ReplicaElectionResult, ...], wire(array(ReplicaElectionResult), "0+")
    ] = ()
