"""Dual writes over real databases and a real broker: crashed at every step, and what a user meets."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session
from tests.support.dual_world import (
    DECIDED_PAYMENT,
    PAYMENT,
    RECOVERY,
    Crash,
    Crashed,
    MakeWorld,
    World,
)
from tests.support.effort import LONG
from tests.support.raw_producer import committed_values, make_topic

from tallystick import Admin
from tallystick.client.transactions.modes import Mode
from tallystick.dualwrite import (
    CommitUnknown,
    DualWriter,
    Finding,
    ForeignCluster,
    HeuristicMixed,
    ManagedByWriter,
    NotRecovered,
    NotVisible,
    SqlStore,
    TransactionTooOld,
    UnsafeDurability,
    WriterFenced,
)
from tallystick.dualwrite.stores.durability import DurabilitySetting
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt
from tallystick.kernel.value import replace
from tallystick.testing import EmbeddedBroker, FakeClock

pytestmark = pytest.mark.server

MODES: dict[Mode, dict[str, object]] = {
    Mode.TWO_PHASE: {},
    Mode.KEEP: {"tallystick.modes": "keep"},
    Mode.RESUME: {"tallystick.modes": "resume"},
}
STEPS_MAX = 60


def story(world: World, first: Crash, second: Crash) -> bool:
    """Two payments, a recovery, and one more payment; each plan strikes in its part. Did one?"""
    with suppress(Crashed):
        writer = world.life(first)
        writer.recover()
        world.pay(writer, 1, "a")
        world.pay(writer, 2, "b")
    if first.struck:
        world.cut()
    with suppress(Crashed):
        world.life(second).recover()
    if second.struck:
        world.cut()
    third = world.life()
    third.recover()
    world.check()
    assert third.recover().clean, "recovering twice finds nothing the second time"
    world.pay(third, 3, "c")
    assert world.check()[-1] == "c"
    world.close()
    return first.struck or second.struck


def strikes(run: Callable[[Crash], bool]) -> int:
    """Strike after each step in turn, until there is none."""
    for after in range(1, STEPS_MAX):
        if not run(Crash(after)):
            return after
    raise AssertionError(f"more than {STEPS_MAX} steps")


slow = pytest.mark.slow
EVERY_MODE = [Mode.TWO_PHASE, pytest.param(Mode.KEEP, marks=slow), pytest.param(Mode.RESUME, marks=slow)]
EVERY_MODE_IF_LONG = EVERY_MODE if LONG else EVERY_MODE[:1]


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_both_sides_agree_after_a_crash_at_any_step(sqlite_world: MakeWorld, mode: Mode) -> None:
    """[DW-3, DW-5, DW-6, DW-7] After each step of a recovery and two payments."""
    assert strikes(lambda crash: story(sqlite_world(**MODES[mode]), crash, Crash())) > len(
        RECOVERY
    ) + 2 * len(PAYMENT)


@pytest.mark.gate(0)
@pytest.mark.parametrize("mode", EVERY_MODE_IF_LONG)
def test_both_sides_agree_after_a_crash_at_any_step_beside_the_end(
    sqlite_world: MakeWorld, mode: Mode
) -> None:
    """[DW-3, DW-5, DW-6, DW-7] Blocks that wait for the decision alone; the last is not confirmed."""
    waited = [*RECOVERY, *DECIDED_PAYMENT, *DECIDED_PAYMENT[:-1]]
    assert strikes(lambda crash: story(sqlite_world("decided", **MODES[mode]), crash, Crash())) > len(waited)


@pytest.mark.gate(0)
def test_both_sides_agree_after_a_crash_at_any_step_on_postgresql(postgresql_world: MakeWorld) -> None:
    """[DW-3, DW-7]"""
    assert strikes(lambda crash: story(postgresql_world(), crash, Crash())) > len(RECOVERY) + 2 * len(PAYMENT)


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", EVERY_MODE_IF_LONG)
@pytest.mark.parametrize("step", ["prepare", "commit database", "commit"])
def test_both_sides_agree_after_a_crash_in_recovery(sqlite_world: MakeWorld, mode: Mode, step: str) -> None:
    """[DW-5] Recovery itself is ended after each of its steps, whatever it had to do."""

    def run(second: Crash) -> bool:
        first = Crash(at=step)
        story(sqlite_world(**MODES[mode]), first, second)
        assert first.struck
        return second.struck

    assert strikes(run) > len(RECOVERY) - 3  # that the id has recovered is noted once


# ---- what a user meets


def test_nothing_sent_leaves_no_trace_in_kafka(sqlite_world: MakeWorld) -> None:
    """[DW-7] The database commits alone; the row is still the fence."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    before = _described(world)
    with writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, 'b')"))
    assert _described(world) == before
    assert world.rows() == ["a", "b"]
    assert committed_values(world.broker, world.topic, 0) == ["a"]


def _described(world: World) -> object:
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        return admin.describe_transactions([world.topic]).one(world.topic)


def test_no_rows_still_record_the_decision(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with writer.transaction(wait_visible=True) as txn:
        txn.send(world.topic, b"a")
    row = world.store.read_state(world.topic)
    assert row is not None
    assert row.state
    assert row.transaction_version == 2
    assert committed_values(world.broker, world.topic, 0) == ["a"]


@pytest.mark.parametrize("what", [KeyError, KeyboardInterrupt, GeneratorExit])
def test_what_leaves_the_block_takes_both_back(sqlite_world: MakeWorld, what: type[BaseException]) -> None:
    """[DW-7]"""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with pytest.raises(what), writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
        raise what
    world.pay(writer, 1, "a")
    assert world.check() == ["a"]
    with pytest.raises(ManagedByWriter, match="has ended"):
        txn.send(world.topic, b"late")


def test_a_writer_is_recovered_first_and_has_one_transaction(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer = world.life()
    with pytest.raises(NotRecovered, match="call recover"), writer.transaction():
        pass
    writer.recover()
    with (
        pytest.raises(NotRecovered, match="one at a time"),
        writer.transaction(),
        writer.transaction(),
    ):
        pass
    assert writer.ready


def test_the_block_s_session_is_not_committed_by_its_user(sqlite_world: MakeWorld) -> None:
    """And nothing of it is: neither by the session nor by the connection. A savepoint is the user's."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    insert = text(f"INSERT INTO {world.table} VALUES (1, 'no')")
    for name in ("session", "connection"):
        with pytest.raises(ManagedByWriter, match="savepoint"), writer.transaction() as txn:
            txn.session.execute(insert)
            (txn.session if name == "session" else txn.connection).commit()
    with pytest.raises(ManagedByWriter, match="ended inside the block"), writer.transaction() as txn:
        txn.session.execute(insert)
        txn.session.rollback()
    with writer.transaction() as txn:
        assert isinstance(txn.session, Session)
        with txn.session.begin_nested():
            txn.session.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
        txn.send(world.topic, b"a")
    assert world.check() == ["a"]


@pytest.mark.slow
def test_a_writer_that_was_taken_over_commits_neither_half(postgresql_world: MakeWorld) -> None:
    """[DW-2] It stalls in its block; another recovers its id; it wakes, and would commit."""
    world = postgresql_world()
    stalled = world.life()
    stalled.recover()
    with pytest.raises(WriterFenced), stalled.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no").result(30)
        other = world.life()
        (found,) = other.recover().ids
        assert found.finding is Finding.UNDECIDED
    assert not stalled.ready
    world.pay(other, 2, "a")
    assert world.check() == ["a"]


def test_a_lost_answer_to_the_commit_is_in_doubt_and_recovered(sqlite_world: MakeWorld) -> None:
    """[DW-3] the Kafka transaction stays prepared, until a claim tells; both outcomes."""
    for committed in (False, True):
        world = sqlite_world()
        writer = world.life()
        writer.recover()
        with pytest.raises(InDoubt, match="recover"), writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
            txn.send(world.topic, b"a")
            txn.database.commit = _losing(txn.database.commit, committed)  # type: ignore[method-assign]
        with pytest.raises(NotRecovered), writer.transaction():
            pass
        (found,) = writer.recover().ids
        assert found.finding is (Finding.DECIDED if committed else Finding.UNDECIDED)
        assert world.check() == (["a"] if committed else [])


def test_ctrl_c_while_the_database_commits_leaves_the_outcome_to_recovery(sqlite_world: MakeWorld) -> None:
    """[DW-3, DW-7] What was interrupted is raised, and says what is to be done."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised, writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
        txn.database.commit = interrupted  # type: ignore[method-assign]
    assert "recover() finds out" in raised.value.__notes__[0]
    assert not writer.ready
    (found,) = writer.recover().ids
    assert found.finding is Finding.UNDECIDED
    world.pay(writer, 2, "a")
    assert world.check() == ["a"]


def _losing(commit: Callable[[], None], committed: bool) -> Callable[[], None]:
    def lose() -> None:
        if committed:
            commit()
        raise CommitUnknown("the connection ended")

    return lose


def test_what_an_operator_aborted_is_torn_until_it_is_accepted(sqlite_world: MakeWorld) -> None:
    """A forced outcome: the rows are there, the records are not, and it is said until somebody says so."""
    world = sqlite_world()
    crash = Crash(len(RECOVERY) + PAYMENT.index("commit database") + 1)
    with suppress(Crashed):
        writer = world.life(crash)
        writer.recover()
        world.pay(writer, 1, "a")
    world.cut()
    with Admin({"bootstrap.servers": world.broker.bootstrap_servers}) as admin:
        admin.force_terminate_transaction(world.topic, force=True)
    second = world.life()
    for _ in range(2):
        with pytest.raises(HeuristicMixed, match="has aborted it"):
            second.recover()
    (found,) = second.recover(accept_mixed=True).ids
    assert found.finding is Finding.FORCED
    assert second.recover().clean
    world.pay(second, 2, "b")
    assert world.rows() == ["a", "b"]
    assert committed_values(world.broker, world.topic, 0) == ["b"]


def test_the_row_of_another_cluster_halts(sqlite_world: MakeWorld) -> None:
    """[DW-5] Nothing is changed there."""
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    world.pay(writer, 1, "a")
    with EmbeddedBroker(in_process=True) as other:
        config = {**world.config, "bootstrap.servers": other.bootstrap_servers}
        with DualWriter(world.store, config) as lost, pytest.raises(ForeignCluster, match="of cluster"):
            lost.recover()
        with Admin({"bootstrap.servers": other.bootstrap_servers}) as admin:
            assert world.topic in admin.describe_transactions([world.topic]).failures


def test_two_clusters_and_a_database_commit_together(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    with EmbeddedBroker(in_process=True) as west:
        make_topic(west, "there")
        clusters: dict[str, dict[str, object]] = {
            "east": world.config,
            "west": {"bootstrap.servers": west.bootstrap_servers, "transactional.id": "there"},
        }
        with DualWriter(world.store, clusters=clusters) as writer:
            assert len(writer.recover().ids) == 2
            with writer.transaction(wait_visible=True) as txn:
                txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
                txn.send(world.topic, b"a", cluster="east")
                txn.send("there", b"b", cluster="west")
            with pytest.raises(ValueError, match="east, west"), writer.transaction() as txn:
                txn.send("there", b"c")
        assert list(world.store.transactional_ids()) == sorted([world.topic, "there"])
        assert world.check() == ["a"]
        assert committed_values(west, "there", 0) == ["b"]


@pytest.mark.parametrize(
    ("statement", "named"),
    [("PRAGMA synchronous = OFF", "synchronous"), ("PRAGMA journal_mode = MEMORY", "journal_mode")],
)
def test_a_database_that_may_lose_a_commit_is_refused(
    sqlite_world: MakeWorld, statement: str, named: DurabilitySetting
) -> None:
    """[DW-8] Unless somebody insists, on all of it or on just that."""
    world = sqlite_world()
    engine = world.make_engine()
    event.listen(engine, "connect", lambda connection, _: connection.execute(statement))
    with DualWriter(SqlStore(engine), world.config) as writer, pytest.raises(UnsafeDurability, match=named):
        writer.recover()
    other: DurabilitySetting = "journal_mode" if named == "synchronous" else "synchronous"
    store = SqlStore(engine, allow_unsafe_durability={other})
    with DualWriter(store, world.config) as writer, pytest.raises(UnsafeDurability, match=named):
        writer.recover()
    allowed: list[bool | set[DurabilitySetting]] = [True, {named}]
    for n, each in enumerate(allowed):
        with DualWriter(SqlStore(engine, allow_unsafe_durability=each), world.config) as writer:
            writer.recover()
            world.pay(writer, n, f"{n}")
    assert world.check() == ["0", "1"]


def test_autocommit_is_refused(sqlite_world: MakeWorld) -> None:
    """[DW-8]"""
    world = sqlite_world()
    store = SqlStore(world.engine.execution_options(isolation_level="AUTOCOMMIT"))
    with DualWriter(store, world.config) as writer, pytest.raises(UnsafeDurability, match="AUTOCOMMIT"):
        writer.recover()


@pytest.mark.slow
def test_postgresql_without_synchronous_commit_is_refused(postgresql_world: MakeWorld) -> None:
    """[DW-8] Also where one transaction turns it off for itself."""
    world = postgresql_world()
    writer = world.life()
    writer.recover()

    def pay_carelessly(by: DualWriter[SqlTransaction], what: str) -> None:
        with by.transaction() as txn:
            txn.connection.execute(text("SET LOCAL synchronous_commit = off"))
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (2, '{what}')"))
            txn.send(world.topic, what.encode())

    with pytest.raises(UnsafeDurability, match="synchronous_commit"):
        pay_carelessly(writer, "no")
    world.pay(writer, 1, "a")
    engine = world.make_engine()
    store = SqlStore(engine, allow_unsafe_durability={"fsync"})
    with DualWriter(store, world.config) as hosted:
        hosted.recover()
        with pytest.raises(UnsafeDurability, match="synchronous_commit"):
            pay_carelessly(hosted, "no")
    store = SqlStore(engine, allow_unsafe_durability={"synchronous_commit"})
    with DualWriter(store, world.config) as careless:
        careless.recover()
        pay_carelessly(careless, "b")
    assert world.check() == ["a", "b"]


# ---- time, closing, and what comes after the commit


@pytest.mark.gate(1)
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_a_block_that_took_too_long_for_its_mode_commits_neither(sqlite_world: MakeWorld, mode: Mode) -> None:
    """[DW-10] The cluster may be about to abort it by transaction.timeout.ms: both are taken back in time."""
    world = sqlite_world(
        **MODES[mode], **({} if mode is Mode.TWO_PHASE else {"transaction.timeout.ms": 60_000})
    )
    writer = world.life()
    writer.recover()
    clock = FakeClock()
    writer._session._factories = replace(writer._session._factories, clock=clock)

    def pay_slowly(n: int, what: str, took_ms: int) -> None:
        with writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {world.table} VALUES ({n}, '{what}')"))
            txn.send(world.topic, what.encode())
            clock.advance(took_ms)

    pay_slowly(1, "a", 40_000)
    if mode is Mode.TWO_PHASE:
        pay_slowly(2, "b", 4_000_000)
        assert world.check() == ["a", "b"]
        return
    with pytest.raises(TransactionTooOld, match="46000 ms of the 60000"):
        pay_slowly(2, "no", 46_000)
    assert writer.ready
    with writer.transaction():
        clock.advance(100_000)  # nothing of it is in Kafka
    world.pay(writer, 3, "c")
    assert world.check() == ["a", "c"]


def test_a_look_that_fails_after_both_commits_does_not_pass_for_a_failed_write(
    sqlite_world: MakeWorld,
) -> None:
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with pytest.raises(NotVisible, match="is committed"), writer.transaction(wait_visible=True) as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'a')"))
        txn.send(world.topic, b"a")
        for admin in writer._session._clusters._admins.values():
            admin.close()
    assert writer.ready
    assert world.check() == ["a"]


def test_a_writer_that_is_closed_in_its_block_commits_neither(sqlite_world: MakeWorld) -> None:
    world = sqlite_world()
    writer = world.life()
    writer.recover()
    with pytest.raises(NotRecovered, match="it is closed"), writer.transaction() as txn:
        txn.connection.execute(text(f"INSERT INTO {world.table} VALUES (1, 'no')"))
        txn.send(world.topic, b"no")
        writer.close()
    with pytest.raises(NotRecovered, match="it is closed"):
        writer.recover()
    other = world.life()
    assert other.recover().clean
    assert world.check() == []
