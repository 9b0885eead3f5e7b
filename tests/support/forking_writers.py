"""The program `forking` for dual writers and pools: `forking_writers writer SERVERS BROKER_PID`."""

# ruff: noqa: B023 - what is defined in a loop is called in it

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.pool import NullPool
from tests.support import forking
from tests.support.forking import (
    PARENT,
    SERVERS,
    Waiting,
    broker_halted,
    consumer,
    fork,
    refused,
    state,
    written,
)

from tallystick.dualwrite import DualWriter, Lease, ManagedByWriter, SqlStore, WriterPool
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.testing import eventually


@contextmanager
def database() -> Iterator[Engine]:
    folder = tempfile.mkdtemp()
    engine = create_engine(f"sqlite:///{folder}/rows.db", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (what VARCHAR(50))"))
    SqlStore(engine).create()
    try:
        yield engine
    finally:
        if os.getpid() == PARENT:
            shutil.rmtree(folder)


def writer_of(engine: Engine) -> DualWriter[SqlTransaction]:
    config = {
        "bootstrap.servers": SERVERS,
        "transactional.id": forking.TOPIC,
        "transaction.two.phase.commit.enable": True,
    }
    return DualWriter(SqlStore(engine), config)


def pay(writer: DualWriter[SqlTransaction], what: str) -> None:
    with writer.transaction() as txn:
        txn.connection.execute(text("INSERT INTO paid VALUES (:what)"), {"what": what})
        txn.send(forking.TOPIC, what.encode())


def both_have(engine: Engine, *wanted: str) -> None:
    with engine.connect() as connection:
        rows = list(connection.execute(text("SELECT what FROM paid")).scalars())
    assert rows == list(wanted), rows
    eventually(lambda: written() == [what.encode() for what in wanted])


def writer_refuses(writer: DualWriter[SqlTransaction]) -> None:
    def enter() -> None:
        with writer.transaction():
            pass

    for call in (enter, lambda: writer.run(lambda _: None), writer.recover, writer.inspect):
        refused(call, ManagedByWriter)
    assert not writer.ready
    writer.close()
    writer.close()
    repr(writer)


@state
def writer_new() -> None:
    """Use a new writer in both the child and the parent."""
    with database() as engine:
        writer = writer_of(engine)

        def check() -> None:
            writer.recover()
            pay(writer, f"child {os.getpid()}")
            writer.close()

        fork(check)
        with writer:
            writer.recover()
            pay(writer, "a")
        assert len(written()) == 3


@state
def writer_looked() -> None:
    with database() as engine, writer_of(engine) as writer:
        writer.inspect()
        fork(lambda: writer_refuses(writer))
        writer.recover()
        pay(writer, "a")
        both_have(engine, "a")


@state
def writer_ready() -> None:
    with database() as engine, writer_of(engine) as writer:
        writer.recover()
        pay(writer, "a")
        fork(lambda: writer_refuses(writer))
        pay(writer, "b")
        both_have(engine, "a", "b")


@state
def writer_in_a_transaction() -> None:
    """Check that neither calls in the block nor the child's way out of it end anything of the parent's."""
    with database() as engine, writer_of(engine) as writer:
        writer.recover()
        with writer.transaction() as txn:
            txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
            txn.send(forking.TOPIC, b"a").result(30)

            def check() -> None:
                refused(lambda: txn.send(forking.TOPIC, b"child"), ManagedByWriter)
                refused(lambda: txn.send_batch(forking.TOPIC, [b"child"]), ManagedByWriter)
                with consumer() as own:
                    refused(lambda: txn.send_offsets(own), ManagedByWriter)
                for name in ("database", "connection", "session"):
                    refused(lambda: getattr(txn, name), ManagedByWriter)
                writer_refuses(writer)

            fork(check)
            txn.send(forking.TOPIC, b"b")
            txn.connection.execute(text("INSERT INTO paid VALUES ('b')"))
        both_have(engine, "a", "b")


@state
def writer_with_rows_in_memory() -> None:
    """Leave the block in the child without an error: it flushes nothing over the parent's connection."""
    with database() as engine, writer_of(engine) as writer:
        writer.recover()
        flushed: list[int] = []
        try:
            with writer.transaction() as txn:
                txn.send(forking.TOPIC, b"a")
                txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
                event.listen(txn.session, "before_commit", lambda _: flushed.append(os.getpid()))
                event.listen(txn.session, "before_flush", lambda *_: flushed.append(os.getpid()))
                child = os.fork()
        except ManagedByWriter:
            os._exit(7 if os.getpid() not in flushed else 8)
        if child == 0:
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        both_have(engine, "a")


@state
def writer_in_a_savepoint() -> None:
    with database() as engine, writer_of(engine) as writer:
        writer.recover()
        with writer.transaction() as txn, txn.savepoint() as part:
            txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
            part.send(forking.TOPIC, b"a")
            fork(lambda: writer_refuses(writer))
        both_have(engine, "a")


@state
def writer_recovering() -> None:
    with database() as engine, writer_of(engine) as writer:
        with broker_halted():
            waiting = Waiting(writer.recover)
            fork(lambda: writer_refuses(writer))
        waiting.ends()
        pay(writer, "a")
        both_have(engine, "a")


@state
def writer_preparing() -> None:
    with database() as engine, writer_of(engine) as writer:
        writer.recover()
        pay(writer, "a")
        with broker_halted():
            waiting = Waiting(lambda: pay(writer, "b"))
            fork(lambda: writer_refuses(writer))
        waiting.ends()
        both_have(engine, "a", "b")


@state
def writer_pool() -> None:
    with database() as engine:
        config = {"bootstrap.servers": SERVERS, "transactional.id": forking.TOPIC}
        config |= {"transaction.two.phase.commit.enable": "true"}
        with WriterPool(SqlStore(engine), config, size=1) as pool:
            pool.recover()

            def enter() -> None:
                with pool.transaction():
                    pass

            def check() -> None:
                for call in (enter, lambda: pool.run(lambda _: None), pool.recover):
                    refused(call, ManagedByWriter)
                pool.close()

            fork(check)
            with pool.transaction() as txn:
                fork(check)
                txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
                txn.send(forking.TOPIC, b"a")
            both_have(engine, "a")


@state
def leased_pool() -> None:
    """The child renews and gives back nothing: the leases are its parent's."""
    with database() as engine:
        config = {"bootstrap.servers": SERVERS, "transactional.id": forking.TOPIC}
        config |= {"transaction.two.phase.commit.enable": "true"}
        with WriterPool(SqlStore(engine), config, size=1, lease=Lease(duration_ms=86_400_000)) as pool:
            pool.recover()
            before = leases(engine)

            def check() -> None:
                for call in (pool.writer().__enter__, pool.recover):
                    refused(call, ManagedByWriter)
                pool.close()
                assert leases(engine) == before

            fork(check)
            assert leases(engine) == before
            with pool.transaction() as txn:
                txn.connection.execute(text("INSERT INTO paid VALUES ('a')"))
                txn.send(forking.TOPIC, b"a")
            both_have(engine, "a")
        assert [holder for holder, _ in leases(engine)] == [""]


def leases(engine: Engine) -> list[tuple[str, int]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT holder, expires_at_ms FROM kafka_transactional_id_leases"))
        return [(row.holder, row.expires_at_ms) for row in rows]


if __name__ == "__main__":
    forking.main()
