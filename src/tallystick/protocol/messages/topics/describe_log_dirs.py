"""DescribeLogDirs (35): contents and sizes of a broker's data directories."""

from typing import Annotated

from tallystick.protocol.wire import BOOL, INT16, INT32, INT64, STRING, array, message, struct, wire


@struct
class DescribableLogDirTopic:
    topic: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[tuple[int, ...], wire(array(INT32), "1+")] = ()


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    """Partitions whose size on disk is requested; null means all.

    Source: KIP-113; Kafka DescribeLogDirsRequest.
    """

    topics: Annotated[
        tuple[DescribableLogDirTopic, ...] | None, wire(array(DescribableLogDirTopic), "1+", nullable="1+")
    ]


@struct
class DescribeLogDirsPartition:
    partition_index: Annotated[int, wire(INT32, "1+")]
    partition_size: Annotated[int, wire(INT64, "1+")]
    # Lag behind the high watermark; of a future replica, behind the current replica.
    offset_lag: Annotated[int, wire(INT64, "1+")]
    is_future_key: Annotated[bool, wire(BOOL, "1+")]  # will replace the current replica once it has caught up


@struct
class DescribeLogDirsTopic:
    name: Annotated[str, wire(STRING, "1+")]
    partitions: Annotated[
        tuple[DescribeLogDirsPartition, ...], wire(array(DescribeLogDirsPartition), "1+")
    ] = ()


@struct
class DescribeLogDirsResult:
    error_code: Annotated[int, wire(INT16, "1+")] = 0
    log_dir: Annotated[str, wire(STRING, "1+")]
    topics: Annotated[tuple[DescribeLogDirsTopic, ...], wire(array(DescribeLogDirsTopic), "1+")] = ()
    total_bytes: Annotated[int, wire(INT64, "4+", ignorable=True)] = -1  # of the volume; -1 unknown
    usable_bytes: Annotated[int, wire(INT64, "4+", ignorable=True)] = -1
    is_cordoned: Annotated[bool, wire(BOOL, "5+", ignorable=True)] = False


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    """One entry per directory.

    4 adds the size of the volume (KIP-827), 5 whether it is cordoned (KIP-1066).

    Source: Kafka DescribeLogDirsResponse.
    """

    throttle_time_ms: Annotated[int, wire(INT32, "1+")] = 0
    error_code: Annotated[int, wire(INT16, "3+", ignorable=True)] = 0
    results: Annotated[tuple[DescribeLogDirsResult, ...], wire(array(DescribeLogDirsResult), "1+")] = ()
