"""An exception that lands anywhere in a batch of `consume_into`: no record is skipped, none is read twice."""

from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import StatementError
from tests.support.dual_world import World
from tests.support.effort import long_form
from tests.support.interrupts import Strike, TimeIsUp

from tallystick import Consumer, Producer, TopicPartition
from tallystick.dualwrite import consume_into
from tallystick.dualwrite.blocking.consume import ConsumerLoop
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt

pytestmark = pytest.mark.server

VALUES = [f"{n}" for n in range(4)]
LINES_MAX = 1_000


def take(world: World, loop: ConsumerLoop[SqlTransaction], most: int) -> None:
    insert = text(f"INSERT INTO {world.table} VALUES (:n, :what)")
    with loop.batch(1.0, most) as batch:
        for record in batch.records:
            batch.connection.execute(insert, {"n": record.offset, "what": (record.value or b"").decode()})


def read_all(world: World, consumer: Consumer, strike: Strike, first: int) -> None:
    """Read the topic, and be struck in the batch after `first` records."""
    loop = consume_into(world.store, consumer, partitions=[TopicPartition(world.topic, 0)])
    if first:
        take(world, loop, first)
    with suppress(TimeIsUp, KeyboardInterrupt, StatementError, InDoubt), strike:
        take(world, loop, 1)
    for _ in VALUES:
        if len(world.rows()) < len(VALUES):
            take(world, loop, len(VALUES))


@pytest.mark.gate(0)
@pytest.mark.parametrize(
    ("first", "what"),
    [
        (1, TimeIsUp),
        pytest.param(0, TimeIsUp, marks=pytest.mark.slow),
        pytest.param(1, KeyboardInterrupt, marks=[pytest.mark.slow, long_form]),
        pytest.param(0, KeyboardInterrupt, marks=[pytest.mark.slow, long_form]),
    ],
)
def test_an_exception_at_any_line_skips_nothing(world: World, first: int, what: type[BaseException]) -> None:
    """[DW-4] What a poll has returned is returned again unless the database has it."""
    servers = world.broker.bootstrap_servers
    with Producer({"bootstrap.servers": servers}) as producer:
        for value in VALUES:
            producer.send(world.topic, value.encode(), partition=0)
    struck: set[str] = set()
    for n in range(LINES_MAX):
        with world.engine.begin() as connection:
            connection.execute(text(f"DELETE FROM {world.table}"))
        strike = Strike(n, what)
        settings = {"group.id": f"g{n}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        with Consumer({"bootstrap.servers": servers, **settings}) as consumer:
            read_all(world, consumer, strike, first)
        assert world.rows() == VALUES, strike.where
        if strike.where is None:
            break
        struck.add(strike.where)
    assert len(struck) > 40, "lines were struck"
