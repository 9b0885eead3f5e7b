"""Groups that share a partition, and markers, under any order in which the news of durability comes."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.groups import MemoryPartition, World

from harness.groups import durable_view
from tallystick.broker.group.codec import decode_batches
from tallystick.broker.group.machine.apply import GroupTable
from tallystick.broker.group.machine.commands import (
    CommitOffsets,
    CommitTxnOffsets,
    DeleteGroup,
    DeleteOffsets,
    OffsetToCommit,
)
from tallystick.kernel.ids import (
    GroupId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)
from tallystick.protocol.records import ControlType, EndTransactionMarker, encode_marker
from tallystick.storage.log.log import NO_GUARD

GROUPS = st.sampled_from(["a", "b"]).map(GroupId)
PRODUCERS = st.builds(ProducerIdAndEpoch, st.sampled_from([7, 8]).map(ProducerId), st.just(ProducerEpoch(0)))
PARTITIONS = st.builds(TopicPartition, st.just("t"), st.integers(0, 1))
OFFSETS = st.dictionaries(
    PARTITIONS, st.builds(OffsetToCommit, offset=st.integers(0, 99).map(Offset)), min_size=1
)
COMMANDS = st.one_of(
    st.builds(CommitOffsets, offsets=OFFSETS),
    st.builds(CommitTxnOffsets, identity=PRODUCERS, offsets=OFFSETS),
    st.builds(
        DeleteOffsets,
        partitions=st.lists(PARTITIONS, max_size=2).map(tuple),
        may_discard_pending=st.booleans(),
    ),
    st.builds(DeleteGroup, may_discard_pending=st.booleans()),
)
MARKERS = st.tuples(PRODUCERS, st.sampled_from([ControlType.COMMIT, ControlType.ABORT]))
# The index of an append whose news comes now; its like while everything is durable at once.
NEWS = st.one_of(st.integers(0, 3), st.booleans())
EVENTS = st.lists(st.one_of(st.tuples(GROUPS, COMMANDS), MARKERS, NEWS), max_size=30)


class Prefix:
    """How much of the log is live. It only grows, and what is live is that much of the log, exactly."""

    def __init__(self, world: World, log: MemoryPartition) -> None:
        self.world = world
        self.log = log
        self.length = 0

    def check(self) -> None:
        table = GroupTable({})
        live = {name: durable_view(group) for name, group in self.groups().items()}
        for length, batch in enumerate([b"", *self.log.batches]):
            for entry in decode_batches(batch):
                table.replay_event(entry)
            told = {name: durable_view(group) for name, group in table.groups.items()}
            if length >= self.length and told == live:
                self.length = length
                return
        raise AssertionError(f"what is live is no part of the log from {self.length} on: {live}")

    def groups(self) -> dict[GroupId, Any]:
        found = self.world.coordinator.list_groups()
        assert isinstance(found, tuple)
        return {group.group_id: group for group in found}


async def play(events: list[object]) -> None:
    world = World()
    async with world:
        log = world.topic.partitions[0]
        prefix = Prefix(world, log)
        log.gate.clear()
        asked: list[asyncio.Future[object]] = []
        for event in events:
            match event:
                case bool() as at_once:
                    log.gate.closed = not at_once
                case int() as index if index < len(log.gate.waiting):
                    log.gate.waiting.pop(index).set_result(None)
                case (ProducerIdAndEpoch() as who, ControlType() as outcome):
                    batch = encode_marker(
                        EndTransactionMarker(control_type=outcome, coordinator_epoch=0), who, timestamp_ms=1
                    )
                    asked.append(asyncio.ensure_future(world.coordinator.write_marker(0, batch, NO_GUARD)))
                case (str() as group_id, command):
                    asked.append(world.ask(command, GroupId(group_id)))  # type: ignore[arg-type]
            await world.settle()
            prefix.check()
        log.gate.set()
        await asyncio.gather(*asked)
        prefix.length = len(log.batches)
        prefix.check()


@settings(deadline=None, max_examples=examples(quick=50, gate=50, full=150))
@given(EVENTS)
def test_what_is_live_is_always_a_prefix_of_the_log(events: list[object]) -> None:
    """[GRP-7]"""
    asyncio.run(play(events))
