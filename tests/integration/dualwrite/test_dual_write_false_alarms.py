"""What ends badly, and tears nothing, is not called HeuristicMixed by the next writer."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

from contextlib import suppress
from typing import Any

import pytest
from tests.support.dual_world import Crash, Crashed, MakeWorld, World

from tallystick.dualwrite import DatabaseBehind, DualWriter, SqlStore, WriterFenced
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import TallystickError
from tallystick.kernel.value import replace

pytestmark = pytest.mark.server


class Down(Exception):
    """The database cannot be reached."""


class Unreliable(SqlStore):
    """A database that is down at times."""

    down = False

    def begin(self) -> SqlTransaction:
        if self.down:
            raise Down
        return super().begin()


def check_next(world: World, paid: list[str]) -> None:
    """The next writer of the id has nothing to complain of, and goes on."""
    with world.life() as following:
        following.recover()
        assert following.recover().clean
        world.pay(following, 9, "next")
    assert world.check() == [*paid, "next"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_database_that_is_down_when_a_block_fails_tears_nothing(
    sqlite_world: MakeWorld, goes_on: bool
) -> None:
    """[DW-13] That the transaction before is finished cannot be noted, so its end stays to be seen."""
    world = sqlite_world()
    store = Unreliable(world.engine)
    paid = ["a"]
    with DualWriter(store, world.config) as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        with pytest.raises(Down), writer.transaction() as txn:
            txn.send(world.topic, b"no").result(30)
            store.down = True
            raise Down
        if goes_on:
            store.down = False
            assert writer.ready
            world.pay(writer, 2, "b")
            paid.append("b")
    check_next(world, paid)


@pytest.mark.gate(1)
@pytest.mark.parametrize("at", ["roll back", "commit settled", "abort"])
def test_a_process_that_ends_while_its_block_fails_tears_nothing(sqlite_world: MakeWorld, at: str) -> None:
    """[DW-13] Whichever step was the last one."""
    world = sqlite_world()
    with world.life() as first:
        first.recover()  # which notes that the id has recovered
    crash = Crash(at=at)
    writer = world.life(crash)
    writer.recover()
    crash.struck = False
    world.pay(writer, 1, "a")
    with pytest.raises(Crashed), writer.transaction() as txn:
        txn.send(world.topic, b"no").result(30)
        raise KeyError
    world.cut()
    check_next(world, ["a"])


def test_a_record_that_cannot_be_delivered_tears_nothing(sqlite_world: MakeWorld) -> None:
    """[DW-13] The transaction has to be aborted; the process gives up."""
    world = sqlite_world()
    with world.life() as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        with pytest.raises(TallystickError), writer.transaction() as txn:
            txn.send(world.topic, b"no").result(30)
            txn.send(world.topic, b"no", partition=77)
    check_next(world, ["a"])


def test_a_writer_that_is_closed_in_its_block_tears_nothing(sqlite_world: MakeWorld) -> None:
    """[DW-13]"""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    with suppress(TallystickError), writer.transaction() as txn:
        txn.send(world.topic, b"no").result(30)
        writer.close()
    check_next(world, ["a"])


def test_a_writer_that_is_fenced_while_another_recovers_tears_nothing(sqlite_world: MakeWorld) -> None:
    """[DW-13] Its abort would come between the claim of the other one and its look at the cluster."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    block = writer.transaction()
    txn = block.__enter__()
    driver = world.lives[-1][2][-1]
    driver.rollback()  # else SQLite keeps the claim waiting
    driver.execute("BEGIN")  # which takes no lock yet

    def overtaken(_: int, step: RecipeStep, done: bool) -> None:
        if step.name == "claim" and done:
            with pytest.raises(WriterFenced):
                block.__exit__(None, None, None)

    txn.send(world.topic, b"no").result(30)
    with DualWriter(world.store, world.config, watch=overtaken) as second:
        second.recover()
    check_next(world, ["a"])


@pytest.mark.parametrize("paid_before", [[], ["a"]])
def test_a_recovery_that_is_overtaken_reports_no_loss(
    sqlite_world: MakeWorld, paid_before: list[str]
) -> None:
    """[DW-9] The row that it compares is the one that it claimed, and the cluster has gone on since."""
    world = sqlite_world()
    for number, text in enumerate(paid_before):
        with world.life() as writer:
            writer.recover()
            world.pay(writer, number, text)

    def overtake(_: int, step: RecipeStep, done: bool) -> None:
        if step.name == "claim" and done:
            with world.life() as other:
                other.recover()
                world.pay(other, 7, "b")

    with DualWriter(world.store, world.config, watch=overtake) as late, pytest.raises(WriterFenced):
        late.recover()
    check_next(world, [*paid_before, "b"])


def test_a_writer_that_goes_on_under_a_recovery_tears_nothing(sqlite_world: MakeWorld) -> None:
    """[DW-13] It commits what the recovery has seen open, and begins another, which the recovery aborts."""
    world = sqlite_world()
    crash = Crash(at="commit database")
    former = world.life(crash)
    former.recover()
    with pytest.raises(Crashed):
        world.pay(former, 1, "a")
    producer = former._session.branches["kafka"].producer

    def go_on(_: int, step: RecipeStep, done: bool) -> None:
        if step.name == "init" and not done:
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send(world.topic, b"no").result(30)
        elif step.name == "complete" and done:
            raise Crashed  # before it is noted that "a" is finished

    world.cut()
    with DualWriter(world.store, world.config, watch=go_on) as recovering, pytest.raises(Crashed):
        recovering.recover()
    check_next(world, ["a"])


def test_an_aborted_block_of_an_earlier_version_is_not_torn(sqlite_world: MakeWorld) -> None:
    """[DW-13] It noted nothing: an abort after its row is an ordinary one, as far as anything tells."""
    world = sqlite_world()
    with world.life() as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        with pytest.raises(KeyError), writer.transaction() as txn:
            txn.send(world.topic, b"no").result(30)
            raise KeyError
    row = world.store.claim(world.topic)
    former = world.store.begin()
    former.record(replace(row, settled=False, notes=False), row)
    former.commit()
    check_next(world, ["a"])


def test_a_recovery_that_fails_does_not_forget_that_the_database_went_back(sqlite_world: MakeWorld) -> None:
    """[DW-12] The cluster need not show it: what was aborted last hides it."""
    world = sqlite_world()

    class Unavailable(Exception):
        pass

    def fail(_: int, step: RecipeStep, done: bool) -> None:
        if step.name == "describe" and failing and not done:
            failing.pop()
            raise Unavailable

    failing: list[Any] = []
    with DualWriter(world.store, world.config, watch=fail) as writer:
        writer.recover()
        world.pay(writer, 1, "a")
        before = world.store.read_state(world.topic)
        assert before is not None
        world.pay(writer, 2, "lost")
        now = world.store.read_state(world.topic)
        assert now is not None
        back = world.store.begin()
        back.record(replace(before, settled=True), now)
        back.commit()
        with pytest.raises(DatabaseBehind):
            world.pay(writer, 3, "b")
        failing.append(True)
        with pytest.raises(Unavailable):
            writer.recover()
        with pytest.raises(DatabaseBehind):
            writer.recover()
