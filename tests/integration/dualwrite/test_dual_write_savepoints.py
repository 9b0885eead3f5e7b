"""`txn.savepoint()`: its rows and its records are kept together, or neither."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Integer, String, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tests.support.dual_world import MakeWorld, World, Writer
from tests.support.raw_producer import committed_values

from tallystick.client.errors import AbortRequired, ClientError
from tallystick.testing import eventually

pytestmark = pytest.mark.server


def ready(world: World) -> Writer:
    writer = world.life()
    writer.recover()
    return writer


def insert(world: World, what: str) -> Any:
    return text(f"INSERT INTO {world.table} VALUES (1, '{what}')")


class Base(DeclarativeBase):
    pass


class Here(Base):
    __tablename__ = "here"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    what: Mapped[str] = mapped_column(String)


@pytest.mark.gate(1)
@pytest.mark.parametrize("refused", [b"x" * 50_000, 5], ids=["too large", "no bytes"])
@pytest.mark.parametrize("queued", [["part"], []], ids=["after another", "alone"])
def test_a_savepoint_whose_record_is_refused_keeps_no_rows(
    sqlite_world: MakeWorld, refused: Any, queued: list[str]
) -> None:
    """[DW-2] Its error leaves the savepoint, and a caller that goes on commits what is around it at most."""
    world = sqlite_world(**{"max.request.size": 20_000})
    writer = ready(world)
    with suppress(AbortRequired), writer.transaction() as txn:
        txn.connection.execute(insert(world, "outer"))
        txn.send(world.topic, b"outer")
        with pytest.raises((ClientError, TypeError)), txn.savepoint() as part:
            txn.connection.execute(insert(world, "part"))
            for each in queued:
                part.send(world.topic, each.encode())
            part.send(world.topic, refused)
    assert world.check() in ([], ["outer"])
    world.pay(writer, 2, "next")
    assert world.check()[-1] == "next"


@pytest.mark.parametrize("what", ["a new row", "a changed row", "a row that the database refuses"])
def test_a_savepoint_takes_back_what_its_session_has_not_flushed(sqlite_world: MakeWorld, what: str) -> None:
    """[DW-2] It would be flushed later, and committed without its record."""
    world = sqlite_world()
    with world.engine.begin() as connection:
        Here.metadata.create_all(connection)
        connection.execute(text("INSERT INTO here VALUES (1, 'old'), (5, 'older')"))
    writer = ready(world)
    with writer.transaction() as txn:
        row = txn.session.get_one(Here, 1)
        txn.session.add(Here(id=2, what="before"))
        with suppress(LookupError, IntegrityError), txn.savepoint() as part:
            part.send(world.topic, b"no")
            if what == "a changed row":
                row.what = "changed"
            else:
                txn.session.add(Here(id=5 if "refuses" in what else 3, what="new"))
            if "refuses" not in what:
                raise LookupError
        with txn.savepoint() as part:
            txn.session.add(Here(id=4, what="kept"))
            part.send(world.topic, b"kept")
        txn.send(world.topic, b"after")
    with world.engine.connect() as connection:
        rows = connection.execute(text("SELECT what FROM here ORDER BY id")).scalars().all()
    assert rows == ["old", "before", "kept", "older"]
    eventually(lambda: committed_values(world.broker, world.topic, 0) == ["kept", "after"])
