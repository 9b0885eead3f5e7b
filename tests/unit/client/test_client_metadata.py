"""How an answer changes what a client knows of its cluster."""

from uuid import UUID

import pytest

from tallystick.client.net.metadata import (
    EMPTY_IMAGE,
    MetadataImage,
    Node,
    merge_response,
    with_leaders,
    without_topics,
)
from tallystick.client.settings.config import Address
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol.messages.topics.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

ORDERS = UUID(int=1)
AT = TopicPartition("orders", 0)


def answer(*topics: MetadataResponseTopic, cluster: str | None = "c", brokers: int = 3) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=n, host=f"b{n}", port=9092) for n in range(1, brokers + 1)
        ),
        cluster_id=cluster,
        controller_id=1,
        topics=topics,
    )


def topic(
    leader: int = 1, epoch: int = 1, name: str = "orders", topic_id: UUID = ORDERS, error: int = 0
) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=(1, 2), error_code=error
    )
    return MetadataResponseTopic(name=name, topic_id=topic_id, partitions=(partition,))


def known(*topics: MetadataResponseTopic) -> MetadataImage:
    return merge_response(EMPTY_IMAGE, answer(*topics), all_topics=False)


def test_the_first_answer_is_the_image() -> None:
    image = known(topic())
    assert image.cluster_id == "c"
    assert image.controller_id == 1
    assert image.nodes[2] == Node(id=2, address=Address("b2", 9092))
    assert image.find_leader(AT) == 1
    assert image.topics["orders"].id == ORDERS


@pytest.mark.parametrize(("epoch", "leader"), [(4, 1), (5, 2), (6, 2)])
def test_a_partition_never_goes_back_to_an_older_leader(epoch: int, leader: int) -> None:
    """[CLI-4] The second answer comes from a broker that has not heard yet, or has."""
    image = merge_response(known(topic(1, epoch=5)), answer(topic(2, epoch)), all_topics=False)
    assert image.find_leader(AT) == leader


def test_another_topic_by_the_same_name_begins_anew() -> None:
    """[CLI-4] Deleted and created again: leader epochs start at 0."""
    image = merge_response(
        known(topic(1, epoch=9)), answer(topic(2, 0, topic_id=UUID(int=2))), all_topics=False
    )
    assert image.find_leader(AT) == 2


def test_another_cluster_begins_anew() -> None:
    image = merge_response(known(topic(1, 9)), answer(topic(2, 0), cluster="other"), all_topics=False)
    assert image.find_leader(AT) == 2
    assert merge_response(known(topic(1, 9)), answer(cluster="other"), all_topics=False).topics == {}


def test_a_partial_answer_keeps_the_other_topics_and_a_full_one_does_not() -> None:
    both = known(topic(), topic(name="other", topic_id=UUID(int=3)))
    assert set(merge_response(both, answer(topic()), all_topics=False).topics) == {"orders", "other"}
    assert set(merge_response(both, answer(topic()), all_topics=True).topics) == {"orders"}


def test_a_topic_that_is_gone_says_why() -> None:
    gone = MetadataResponseTopic(name="orders", error_code=3)
    image = merge_response(known(topic()), answer(gone), all_topics=False)
    assert image.find_leader(AT) is None
    assert image.find_leader_error(AT) == 3
    back = merge_response(image, answer(topic()), all_topics=False)
    assert back.error_codes == {}
    assert back.find_leader(AT) == 1


def test_why_a_partition_has_no_broker_to_send_to() -> None:
    assert known().find_leader_error(AT) == 3
    assert known(topic(-1)).find_leader_error(AT) == 5
    assert known(topic(-1, error=5)).find_leader_error(AT) == 5
    assert known(topic(9)).find_leader(AT) is None, "a leader the answer gives no address for"


def test_an_answer_may_name_a_newer_leader_and_where_it_is() -> None:
    """KIP-951."""
    image = known(topic(1, epoch=5))
    newcomer = Node(id=7, address=Address("b7", 1))
    assert with_leaders(image, {AT: (7, 6)}, [newcomer]).find_leader(AT) == 7
    assert with_leaders(image, {AT: (7, 5)}, [newcomer]).find_leader(AT) == 1
    assert with_leaders(image, {AT: (-1, 9)}).find_leader(AT) == 1
    assert with_leaders(image, {TopicPartition("x", 0): (1, 1)}).topics == image.topics


def test_topics_are_forgotten_with_their_errors() -> None:
    image = merge_response(
        known(topic()), answer(MetadataResponseTopic(name="no", error_code=3)), all_topics=False
    )
    assert without_topics(image, ["no", "orders", "never"]) == known()
