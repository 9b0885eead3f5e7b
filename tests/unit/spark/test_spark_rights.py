"""A refused id of a sink is told with the one command that grants all of them."""

import pytest

from tallystick.client.errors import NotAuthorized, build_broker_error
from tallystick.kernel.codes import ErrorCode
from tallystick.spark.options.rights import explain_missing_right
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.errors import MissingRight

WORKER = "flights/w/0123456789abcdef/0"


@pytest.mark.parametrize(
    ("modes", "operations"),
    [
        (("2pc", "resume"), "--operation Write --operation Describe --operation TwoPhaseCommit"),
        (("resume",), "--operation Write --operation Describe"),
    ],
)
def test_the_command_is_for_all_ids_of_the_prefix(modes: tuple[str, ...], operations: str) -> None:
    options = SinkOptions(prefix="flights", client={}, modes=modes)
    with pytest.raises(MissingRight) as refused, explain_missing_right(options):
        raise build_broker_error("InitProducerId", WORKER, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    wanted = (
        f"tallystick acls create --allow-principal User:NAME {operations} "
        "--transactional-id flights/ --resource-pattern-type prefixed."
    )
    assert wanted in str(refused.value)
    assert f"--transactional-id {WORKER}" not in str(refused.value)


def test_a_topic_is_told_as_it_is() -> None:
    options = SinkOptions(prefix="flights", client={})
    with pytest.raises(NotAuthorized, match="--topic orders"), explain_missing_right(options):
        raise NotAuthorized("Produce", "orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED, resource="orders")
