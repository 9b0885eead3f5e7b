"""A refusal says which right is missing, and how to grant it."""

import pytest

from tallystick.client.errors import NotAuthorized, build_broker_error
from tallystick.client.missing_rights import _OPERATIONS, describe_missing_right
from tallystick.kernel.codes import ErrorCode
from tallystick.protocol.acls import AclOperation
from tallystick.protocol.apis import API_SPECS


@pytest.mark.parametrize(
    ("api", "code", "text"),
    [
        ("Produce", 29, "Write on the topic is needed: tallystick acls create --allow-principal User:NAME"),
        ("Produce", 29, "--operation Write --topic NAME"),
        ("Fetch", 29, "Read on the topic"),
        ("JoinGroup", 30, "--operation Read --group NAME"),
        ("InitProducerId", 31, "--operation IdempotentWrite --cluster"),
        ("InitProducerId", 53, "with two-phase commit TwoPhaseCommit as well"),
        ("EndTxn", 53, "--operation Write --transactional-id ID"),
        ("DescribeTransactions", 53, "Describe on the transactional id"),
    ],
)  # fmt: skip
def test_the_right_and_the_command(api: str, code: int, text: str) -> None:
    error = build_broker_error(api, "orders", code)
    assert isinstance(error, NotAuthorized)
    assert text in str(error)
    assert "'orders'" in str(error)


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
