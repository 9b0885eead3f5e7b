"""A record that was refused, and a block that goes on: neither side is committed, and the writer works on."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from tests.support.dual_world import World

from tallystick.admin import Admin
from tallystick.admin.configs import ConfigResource, ResourceType
from tallystick.client.errors import AbortRequired
from tallystick.client.producer.batches.rows import ListRows

pytestmark = pytest.mark.server


REFUSED_SENDS: dict[str, Callable[[Any, str], object]] = {
    "too large": lambda txn, topic: txn.send(topic, b"x" * 2_000_000),
    "unknown partition": lambda txn, topic: txn.send(topic, b"x", partition=77),
    "not bytes": lambda txn, topic: txn.send(topic, 7),
    "too large batch": lambda txn, topic: txn.send_batch(topic, [b"x", b"x" * 2_000_000]),
    "no such cluster": lambda txn, topic: txn.send(topic, b"x", cluster="elsewhere"),
    "time in seconds": lambda txn, topic: txn.send(topic, b"x", timestamp_ms=1.5),
    "batch with a time in seconds": lambda txn, topic: txn.send_batch(topic, [b"x"], timestamp_ms=1.5),
    "time as text": lambda txn, topic: txn.send(topic, b"x", timestamp_ms="now"),
    "header as text": lambda txn, topic: txn.send(topic, b"x", headers=[("h", "text")]),
}


@pytest.mark.gate(3)
@pytest.mark.parametrize("send", REFUSED_SENDS.values(), ids=list(REFUSED_SENDS))
def test_a_block_that_swallows_a_refusal_commits_nothing(
    world: World, send: Callable[[Any, str], object]
) -> None:
    """As Java's producer, whose commitTransaction then fails."""
    with world.life() as writer:
        writer.recover()
        with (
            pytest.raises(AbortRequired, match="neither side is committed") as refused,
            writer.transaction() as txn,
        ):
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
            with suppress(Exception):
                send(txn, world.topic)
            txn.send(world.topic, b"no")
        assert refused.value.__cause__ is not None
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]


def test_a_record_that_cannot_be_packed_ends_its_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is packed when it is sent, which is after `send` has taken it, and may be in the commit."""

    def fail(_: ListRows) -> bytes:
        raise MemoryError("no room")

    with world.life() as writer:
        writer.recover()
        with monkeypatch.context() as patch:
            patch.setattr(ListRows, "encode_section", fail)
            with pytest.raises(AbortRequired, match="no room"), writer.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
                txn.send(world.topic, b"no")
        assert writer.ready
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]


def test_a_record_that_its_topic_refuses_fences_no_one(world: World) -> None:
    """It is refused at prepare, as AbortRequired: the writer goes on without a recovery."""
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.alter_configs(
            {ConfigResource(ResourceType.TOPIC, world.topic): {"max.message.bytes": "1000"}}
        ).all()
    with world.life() as writer:
        writer.recover()
        for _ in range(2):
            with pytest.raises(AbortRequired, match="MESSAGE_TOO_LARGE"), writer.transaction() as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
                txn.send(world.topic, b"x" * 5000)
        assert writer.ready
        world.pay(writer, 2, "next")
    assert world.check() == ["next"]
