"""A refusal says which right is missing, and how to grant it."""

import pickle

import pytest

from tallystick.client.errors import NotAuthorized, build_broker_error
from tallystick.client.errors.missing_rights import _OPERATIONS, describe_missing_right
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.acls import AclOperation
from tallystick.protocol.apis import API_SPECS

AT = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("api", "code", "subject", "text"),
    [
        ("Produce", 29, AT, "Write on the topic 'orders' is needed: tallystick acls create"),
        ("Produce", 29, AT, "--operation Write --topic orders"),
        ("Fetch", 29, AT, "Read on the topic 'orders'"),
        ("CreateTopics", 29, "new one", "--operation Create --topic 'new one'"),
        ("AddPartitionsToTxn", 29, "pay", "--operation Write --topic NAME"),
        ("JoinGroup", 30, "readers", "--operation Read --group readers"),
        ("OffsetFetch", 29, "readers", "--operation Describe --topic NAME"),
        ("AddOffsetsToTxn", 30, "pay", "--operation Read --group NAME"),
        ("InitProducerId", 31, "", "--operation IdempotentWrite --cluster"),
        ("InitProducerId", 53, "pay", "with two-phase commit TwoPhaseCommit as well"),
        ("EndTxn", 53, "pay", "--operation Write --transactional-id pay"),
        ("Produce", 53, AT, "--operation Write --transactional-id NAME"),
        ("DescribeTransactions", 53, "pay", "Describe on the transactional id 'pay'"),
    ],
)  # fmt: skip
def test_the_right_and_the_command(api: str, code: int, subject: object, text: str) -> None:
    """The name of the resource is filled in where the refusal is about it."""
    error = build_broker_error(api, subject, code)
    assert isinstance(error, NotAuthorized)
    assert text in str(error)
    assert repr(str(subject)) in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_is_not_known_is_not_guessed() -> None:
    assert describe_missing_right("Heartbeat", 29) == ""
    assert describe_missing_right("Produce", 0) == ""
    assert str(build_broker_error("Heartbeat", "g", 29)).startswith(
        "Heartbeat 'g': TOPIC_AUTHORIZATION_FAILED; "
    )


def test_every_name_is_one_of_kafkas() -> None:
    apis = {spec.name for spec in API_SPECS.values()}
    operations = {each.name.replace("_", "") for each in AclOperation}
    for code, table in _OPERATIONS.items():
        assert ErrorCode(code).name.endswith("_AUTHORIZATION_FAILED")
        assert set(table) <= apis
        assert {operation.upper() for operation in table.values()} <= operations
