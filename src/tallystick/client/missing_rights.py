"""Which right a refused request needs: what KafkaApis and ControllerApis check, by API. Pure.

Operations are named as `kafka-acls` and `tallystick acls` name them.
"""

from collections.abc import Mapping
from typing import Final

from tallystick.kernel.codes import ErrorCode

_OPTIONS: Final[Mapping[int, tuple[str, str]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("the topic", "--topic NAME"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("the group", "--group NAME"),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ("the cluster", "--cluster"),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("the transactional id", "--transactional-id ID"),
}

# The first operation of each resource is the one that most requests need.
_OPERATIONS: Final[Mapping[int, Mapping[str, str]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: {
        "Produce": "Write",
        "AddPartitionsToTxn": "Write",
        "Fetch": "Read",
        "OffsetCommit": "Read",
        "TxnOffsetCommit": "Read",
        "OffsetDelete": "Read",
        "DescribeProducers": "Read",
        "ListOffsets": "Describe",
        "Metadata": "Describe",
        "OffsetFetch": "Describe",
        "OffsetForLeaderEpoch": "Describe",
        "CreateTopics": "Create",
        "DeleteTopics": "Delete",
        "DeleteRecords": "Delete",
        "CreatePartitions": "Alter",
        "DescribeConfigs": "DescribeConfigs",
        "IncrementalAlterConfigs": "AlterConfigs",
    },
    ErrorCode.GROUP_AUTHORIZATION_FAILED: {
        "FindCoordinator": "Describe",
        "OffsetFetch": "Describe",
        "DescribeGroups": "Describe",
        "DeleteGroups": "Delete",
        "OffsetDelete": "Delete",
        "DescribeConfigs": "DescribeConfigs",
        "IncrementalAlterConfigs": "AlterConfigs",
        **dict.fromkeys(
            (
                "JoinGroup",
                "SyncGroup",
                "Heartbeat",
                "LeaveGroup",
                "OffsetCommit",
                "AddOffsetsToTxn",
                "TxnOffsetCommit",
            ),
            "Read",
        ),
    },
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: {
        "InitProducerId": "IdempotentWrite",
        "DescribeAcls": "Describe",
        "DescribeCluster": "Describe",
        "DescribeLogDirs": "Describe",
        "DescribeConfigs": "DescribeConfigs",
        "IncrementalAlterConfigs": "AlterConfigs",
        **dict.fromkeys(("WriteTxnMarkers", "CreateAcls", "DeleteAcls", "UpdateFeatures"), "Alter"),
    },
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: {
        "FindCoordinator": "Describe",
        "DescribeTransactions": "Describe",
        **dict.fromkeys(
            (
                "InitProducerId",
                "AddPartitionsToTxn",
                "AddOffsetsToTxn",
                "TxnOffsetCommit",
                "EndTxn",
                "Produce",
            ),
            "Write",
        ),
    },
}


def describe_missing_right(api: str, code: int) -> str:
    """Return which right on what is missing and the command that grants it; empty if that is not known."""
    operation = _OPERATIONS.get(code, {}).get(api)
    if operation is None:
        return ""
    resource, option = _OPTIONS[code]
    also = ""
    if api == "InitProducerId" and code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        also = ", with two-phase commit TwoPhaseCommit as well"  # KIP-939
    return (
        f"{operation} on {resource} is needed{also}: tallystick acls create --allow-principal User:NAME "
        f"--operation {operation} {option}"
    )
