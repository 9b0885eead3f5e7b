"""The simulation's own parts: a machine that dies, and a disk that is full while the broker needs it."""

from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from harness.memory_fs import UNLIMITED
from harness.sim.loop import VirtualTime
from harness.sim.machine import BrokerMachine
from tallystick.broker.broker import Broker
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject

SETTINGS = {"log.dirs": "data", "log.reserve.bytes": "0", "log.cleaner.enable": "false"}


def turn_until_done(machine: BrokerMachine, work: Coroutine[Any, Any, Any]) -> Any:
    task = machine.loop.create_task(work)
    while not task.done():
        machine.loop.run_ready()
        due = machine.loop.next_callback_s()
        assert due is not None, "it waits for what never comes"
        machine.time.now_s = max(machine.time.now_s, due)
    return task.result()


async def _nothing() -> None:
    return None


@pytest.fixture
def machine() -> BrokerMachine:
    made = BrokerMachine(SETTINGS, VirtualTime(), Random(0))
    made.start()
    turn_until_done(made, _nothing())
    return made


def broker_of(machine: BrokerMachine) -> Broker:
    assert machine.broker is not None
    return machine.broker


def used_bytes(machine: BrokerMachine) -> int:
    return sum(map(len, machine.fs.files().values()))


def test_a_topic_is_finished_when_the_disk_has_room_again(machine: BrokerMachine) -> None:
    """Its definition was durable before its files met the end of the disk: asking again completes it."""
    controller = broker_of(machine).topic_controller
    machine.fs.capacity = used_bytes(machine) + 50
    refused = turn_until_done(machine, controller.create(TopicSpec("orders", 3)))
    assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert controller.image.find("orders") is None

    machine.fs.capacity = UNLIMITED
    made = turn_until_done(machine, controller.create(TopicSpec("orders", 3)))
    assert made is controller.image.find("orders")
    assert len(controller.image.list_partitions_of("orders")) == 3


def test_a_topic_is_finished_as_it_was_defined_first(machine: BrokerMachine) -> None:
    controller = broker_of(machine).topic_controller
    machine.fs.capacity = used_bytes(machine) + 50
    assert isinstance(turn_until_done(machine, controller.create(TopicSpec("orders", 3))), Reject)

    machine.fs.capacity = UNLIMITED
    made = turn_until_done(machine, controller.create(TopicSpec("orders", 7)))
    assert isinstance(made, Reject)
    assert len(controller.image.list_partitions_of("orders")) == 3


def test_a_coordinator_without_room_for_its_topic_may_have_some_later(machine: BrokerMachine) -> None:
    transactions = broker_of(machine).transactions
    machine.fs.capacity = used_bytes(machine) + 50
    refused = turn_until_done(machine, transactions.ensure_topic())
    assert refused.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    machine.fs.capacity = UNLIMITED
    assert turn_until_done(machine, transactions.ensure_topic()) is None


def test_a_killed_process_does_nothing_more(machine: BrokerMachine) -> None:
    """What it had begun is as far as it had come, and its coroutines do not go on in the next life."""
    controller = broker_of(machine).topic_controller
    task = machine.loop.create_task(controller.create(TopicSpec("orders", 3)))
    machine.fs.crash_after = len(machine.fs.effects) + 4
    while machine.fs.crash_after is not None and not machine.has_died:
        machine.loop.run_ready()
        machine.time.now_s = machine.loop.next_callback_s() or machine.time.now_s
    effects = len(machine.fs.effects)
    machine.loop.kill()
    machine.loop.run_ready()
    assert len(machine.fs.effects) == effects
    assert not task.done()

    machine.end("everything", 0)
    machine.start()
    turn_until_done(machine, _nothing())
    assert len(broker_of(machine).topics.list_partitions_of("orders")) == 3
