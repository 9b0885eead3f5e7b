"""True lag: what a group will be given, not what lies between two offsets."""

from typing import Any

import pytest
from tests.support.collecting import QUICK_PACES, Watch, watch
from tests.support.dual_world import new_name
from tests.support.raw_producer import make_topic

from tallystick import Admin, Consumer, Producer
from tallystick.client.offsets import GroupMetadata, OffsetAndMetadata
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.model.snapshot import GroupOffset, Snapshot
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


@pytest.fixture
def at(broker: EmbeddedBroker) -> TopicPartition:
    name = new_name()
    make_topic(broker, name)
    return TopicPartition(name, 0)


def config_of(broker: EmbeddedBroker, **more: Any) -> CollectorConfig:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    return CollectorConfig.check(client, **{"paces": QUICK_PACES, "publish_ms": 10, **more})


def produce(broker: EmbeddedBroker, at: TopicPartition, *outcomes: str, records: int = 10) -> None:
    """Write transactions that end as named; one that is left open ends when the broker is asked to."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t-{at.topic}"}
    with Producer(config) as producer:
        producer.init_transactions()
        for outcome in outcomes:
            producer.begin_transaction()
            for _ in range(records):
                producer.send(at.topic, b"x" * 100)
            producer.flush()
            if outcome == "commit":
                producer.commit_transaction()
            else:
                producer.abort_transaction()


def commit(admin: Admin, group: str, at: TopicPartition, offset: int) -> None:
    assert admin.alter_group_offsets(group, {at: OffsetAndMetadata(offset)}).complete


def find(snapshot: Snapshot, group: str, at: TopicPartition) -> GroupOffset:
    return snapshot.groups.offsets[group][at]


def delivered(broker: EmbeddedBroker, at: TopicPartition, offset: int) -> int:
    """Count what a reader of committed records is given."""
    config = {"bootstrap.servers": broker.bootstrap_servers, "isolation.level": "read_committed"}
    with Consumer(config) as consumer:
        consumer.assign([at])
        consumer.seek(at, offset)
        end, count = consumer.end_offsets([at])[at], 0
        while consumer.position(at) < end:
            count += len(consumer.poll(1.0))
        return count


def test_markers_and_aborted_records_are_no_lag(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    """The lag of other consoles never reaches 0 where transactions are written."""
    produce(broker, at, "commit", "abort", "commit", "abort")
    # Offsets 0-9 data, 10 marker, 11-20 aborted, 21 marker, 22-31 data, 32 marker, 33-42 aborted, 43 marker
    offsets = {"start": 0, "within": 5, "aborted": 15, "last": 30, "done": 33, "end": 44}
    for name, offset in offsets.items():
        commit(admin, f"{name}-{at.topic}", at, offset)

    async def look(seen: Watch) -> None:
        def lag(snapshot: Snapshot, name: str) -> tuple[int | None, int, int]:
            found = find(snapshot, f"{name}-{at.topic}", at)
            return found.data_lag, found.passed_markers, found.passed_aborted

        snapshot = await seen.see(
            lambda s: all(lag(s, name)[0] is not None for name in offsets) and lag(s, "start")[0] != 0
        )
        assert {name: lag(snapshot, name) for name in offsets} == {
            "start": (20, 4, 20),
            "within": (15, 4, 20),
            "aborted": (10, 3, 16),
            "last": (2, 2, 10),
            "done": (0, 1, 10),
            "end": (0, 0, 0),
        }
        assert snapshot.groups.status.failures == ()
        for name, offset in offsets.items():
            assert lag(snapshot, name)[0] == delivered(broker, at, offset)
        commit(admin, f"start-{at.topic}", at, 7)
        await seen.see(lambda s: lag(s, "start") == (13, 4, 20))
        produce(broker, at, "commit")
        await seen.see(lambda s: lag(s, "start") == (23, 5, 20))

    watch(config_of(broker), look)


def test_what_is_too_far_behind_for_the_bytes_is_not_counted(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    produce(broker, at, *["commit"] * 4, records=200)
    far, near = f"far-{at.topic}", f"near-{at.topic}"
    commit(admin, far, at, 0)
    commit(admin, near, at, 800)

    async def look(seen: Watch) -> None:
        snapshot = await seen.see(lambda s: find(s, near, at).data_lag is not None)
        assert find(snapshot, far, at) == GroupOffset(committed=0, data_lag=None)
        assert find(snapshot, near, at) == GroupOffset(committed=800, data_lag=3, passed_markers=1)

    watch(config_of(broker, lag_bytes_max=1_000), look)


def test_offsets_in_an_open_transaction_are_pending(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    """KIP-447: they wait to replace what is committed."""
    group, config = f"g-{at.topic}", {"bootstrap.servers": broker.bootstrap_servers}
    commit(admin, group, at, 0)
    with Producer({**config, "transactional.id": f"p-{at.topic}"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({at: 5}, GroupMetadata(group_id=group))
        answers = admin.describe_group_offsets([group, "nobody"])
        assert answers.one(group).pending == {at}
        assert answers.one(group).committed == {at: OffsetAndMetadata(0)}
        assert answers.one("nobody").committed == {}

        async def look(seen: Watch) -> None:
            snapshot = await seen.see(lambda s: find(s, group, at).is_pending)
            assert find(snapshot, group, at) == GroupOffset(committed=0, data_lag=0, is_pending=True)
            producer.commit_transaction()
            await seen.see(lambda s: find(s, group, at) == GroupOffset(committed=5, data_lag=0))

        watch(config_of(broker), look)


def test_groups_are_described_with_their_members(
    broker: EmbeddedBroker, admin: Admin, at: TopicPartition
) -> None:
    group = f"live-{at.topic}"
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": "me"}
    with Consumer(config) as consumer:
        consumer.subscribe([at.topic])
        eventually(lambda: consumer.poll(0.1) == [] and consumer.assignment == {at})

        async def look(seen: Watch) -> None:
            snapshot = await seen.see(lambda s: bool(s.groups.groups[group].members))
            (member,) = snapshot.groups.groups[group].members
            assert (member.client_id, member.partitions) == ("me", {at})
            assert snapshot.groups.groups[group].state == "Stable"

        watch(config_of(broker), look)
    answers = admin.describe_groups([group, "nobody"])
    assert answers.one(group).members == ()
    assert not answers.complete
    assert replace(answers.one(group), coordinator=0).type == "classic"
