"""A writer with the database of another service never ends what that service's database has decided."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool
from tests.support.dual_world import NOTING, Crash, Crashed, MakeWorld, World

from tallystick.dualwrite import DatabaseBehind, DualWriter, SqlStore
from tallystick.dualwrite.blocking.participants import ClusterViews
from tallystick.dualwrite.rules.recovery import ClusterSide, Finding, Verdict

pytestmark = pytest.mark.server


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'other.db'}", poolclass=NullPool)
    SqlStore(engine).create()
    yield engine
    engine.dispose()


def decide(world: World) -> None:
    """Let a process end when its database has committed, and Kafka has not."""
    crash = Crash(at="commit database")
    writer = world.life(crash)
    writer.recover()
    with pytest.raises(Crashed):
        world.pay(writer, 1, "decided")
    world.cut()


def test_what_another_database_has_decided_is_not_aborted(sqlite_world: MakeWorld, other: Engine) -> None:
    """[DW-6] However often the wrong one asks; the right one finishes it."""
    world = sqlite_world()
    decide(world)
    for _ in range(2):
        with DualWriter(SqlStore(other), world.config) as stranger:
            for _ in range(2):
                with pytest.raises(DatabaseBehind, match=r"has never had the id.*nothing was ended"):
                    stranger.recover()
            (line,) = stranger.inspect().ids
            assert (line.finding, line.verdict) == (Finding.UNKNOWN_HERE, Verdict.LACK)
    with world.life() as writer:
        (line,) = writer.recover().ids
        assert line.finding is Finding.DECIDED
    assert world.check() == ["decided"]


def test_nor_where_the_cluster_does_not_describe_it(
    sqlite_world: MakeWorld, other: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[DW-6] Then the answer to InitProducerId shows that something is open."""
    world = sqlite_world()
    decide(world)
    with monkeypatch.context() as unseen, DualWriter(SqlStore(other), world.config) as stranger:
        side = ClusterSide(txn_state=None, is_visible=False)
        unseen.setattr(ClusterViews, "describe", lambda _self, _branch: side)
        for _ in range(2):
            with pytest.raises(DatabaseBehind, match="has never had the id"):
                stranger.recover()
    with world.life() as writer:
        writer.recover()
    assert world.check() == ["decided"]


def test_a_database_that_is_the_only_one_goes_on_with_consent(sqlite_world: MakeWorld, other: Engine) -> None:
    """A plain producer of the id may have left a transaction open."""
    world = sqlite_world()
    decide(world)
    with DualWriter(SqlStore(other), world.config) as writer:
        (line,) = writer.recover(accept_mixed=True).ids
        assert line.action == "aborted it in Kafka"
        assert writer.recover().clean


@pytest.mark.gate(2)
@pytest.mark.parametrize("at", ["complete", *NOTING, "begin", "send", "prepare", "record"])
def test_a_first_life_that_ended_anywhere_is_recovered_without_consent(
    sqlite_world: MakeWorld, at: str
) -> None:
    """The row of an id that was recovered once says so, before its first transaction begins."""
    world = sqlite_world()
    crash = Crash(at=at)
    writer = world.life(crash)
    with suppress(Crashed):
        writer.recover()
        world.pay(writer, 1, "lost")
    assert crash.struck
    world.cut()
    with world.life() as following:
        following.recover()
        world.pay(following, 2, "next")
    assert world.check() == ["next"]


def test_a_first_life_of_an_earlier_version_is_recovered_without_consent(sqlite_world: MakeWorld) -> None:
    """Its row has no flags, whatever has happened under it: an upgrade must not stop at what it left open."""
    world = sqlite_world()
    writer = world.life(Crash(at="prepare"))
    writer.recover()
    with world.engine.begin() as connection:
        connection.execute(text("UPDATE kafka_transaction_state SET settled = 0"))
    with pytest.raises(Crashed):
        world.pay(writer, 1, "lost")
    world.cut()
    with world.life() as following:
        (line,) = following.recover().ids
        assert (line.finding, line.action) == (Finding.UNDECIDED, "aborted it in Kafka")
        world.pay(following, 2, "next")
    assert world.check() == ["next"]
