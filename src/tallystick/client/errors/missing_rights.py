"""Rights that refused requests need, by API, as KafkaApis and ControllerApis check them. Pure.

Operations are named as `kafka-acls` and `tallystick acls` name them.
"""

from collections.abc import Mapping
from shlex import quote
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition

_OPTIONS: Final[Mapping[int, tuple[str, str]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ("the topic", "--topic {}"),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ("the group", "--group {}"),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ("the cluster", "--cluster"),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("the transactional id", "--transactional-id {}"),
}

# The APIs whose errors are about something else than the resource that the code concerns.
_OTHER_SUBJECTS: Final[Mapping[int, frozenset[str]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: frozenset({"AddPartitionsToTxn", "OffsetFetch", "TxnOffsetCommit"}),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: frozenset({"AddOffsetsToTxn", "DescribeConfigs"}),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: frozenset({"Produce", "TxnOffsetCommit"}),
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


def find_resource_name(api: str, subject: object, code: int) -> str:
    """Return the name of the resource that a refusal is about; empty if the error does not tell."""
    if code not in _OTHER_SUBJECTS or api in _OTHER_SUBJECTS[code]:
        return ""
    is_topic = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if isinstance(subject, TopicPartition):
        return subject.topic if is_topic else ""
    return subject if isinstance(subject, str) else ""


def describe_missing_right(api: str, code: int, name: str = "") -> str:
    """Return which right on what is missing and the command that grants it; empty if that is not known.

    Args:
        name: the name of the resource; empty if it is not known.
    """
    operation = _OPERATIONS.get(code, {}).get(api)
    if operation is None:
        return ""
    resource, option = _OPTIONS[code]
    also = more = ""
    if api == "InitProducerId" and code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        also = ", with two-phase commit TwoPhaseCommit as well"  # KIP-939
        more = " (and --operation TwoPhaseCommit)"
    if name:
        resource += f" {name!r}"
    return (
        f"{operation} on {resource} is needed{also}: tallystick acls create --allow-principal User:NAME "
        f"--operation {operation} {option.format(quote(name) if name else 'NAME')}{more}"
    )
