"""A program that forks with a store in every state: `forking_stores KIND SERVERS [STATE WHO WHERE TOPIC]...`.

STATE is what the parent has done with the store: `constructed`, `created`, or `used` for a dual write. Each
child makes a writer of its own over it. With WHO `both` the parent writes at the same time, else later. Each
process prints `TOPIC NAME worked`, or `TOPIC NAME refused`.
"""

# ruff: noqa: PT017 - a child has no pytest

import asyncio
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from rocksdict import Rdict
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from tests.support import dual_write_stores
from tests.support.dual_write_stores import SQL, Place

from tallystick.dualwrite import (
    AsyncDeltaStore,
    AsyncSqlStore,
    BadStore,
    DeltaStore,
    DjangoStore,
    DualWriter,
    ManagedByWriter,
    RocksStore,
    SqlStore,
    ZooKeeperStore,
)
from tallystick.dualwrite.aio import DualWriter as AioDualWriter

KIND, SERVERS, *CASES = sys.argv[1:]
PARENT = os.getpid()
CHILD_S = 60
WRITES = 3
LOOP = asyncio.new_event_loop()  # the parent's, to which connections belong


class Case:
    """A store in one state, in a place and with a topic of its own."""

    def __init__(self, state: str, who: str, where: str, topic: str) -> None:
        self.state, self.who, self.topic = state, who, topic
        self.place = Place(KIND, where)
        self.store = self.open()

    def open(self) -> Any:
        where = self.place.where
        match KIND:
            case "rocksdb":
                return RocksStore(Rdict(where))
            case "zookeeper":
                client = KazooClient(where, timeout=10)
                client.start()
                return ZooKeeperStore(client)
            case "django":
                dual_write_stores._django(self.place)
                return DjangoStore("default")
            case "delta":
                return DeltaStore(where)
            case "delta async":
                return AsyncDeltaStore(where)
        if self.place.is_async:
            return AsyncSqlStore(create_async_engine(self.place.url))
        return SqlStore(create_engine(self.place.url))

    def run(self) -> None:
        if self.state == "created":
            made = self.store.create()
            if made is not None:
                LOOP.run_until_complete(made)
        if self.state == "used":
            self.write("parent", 0, 1)
        children = [self.fork(number) for number in range(1 if self.who == "both" else 2)]
        if self.who == "both":
            self.report("parent", 50)
        for child in children:
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0, status
        if self.who != "both":
            self.report("parent", 50)

    def fork(self, number: int) -> int:
        child = os.fork()
        if child == 0:
            signal.alarm(CHILD_S)
            try:
                self.report(f"child{number}", 100 * (number + 1))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            if KIND in SQL and not self.place.is_async:
                sys.exit(0)  # what is collected at the exit must not reach the parent's server either
            # A loop's end would stop the parent's, which has the same epoll set; RocksDB joins threads.
            os._exit(0)
        return child

    def report(self, name: str, first: int) -> None:
        try:
            self.write(name, first, WRITES)
        except (ManagedByWriter, BadStore) as exc:
            assert "fork" in str(exc), exc
            how = "refused"
        else:
            how = "worked"
        os.write(1, f"{self.topic} {name} {how}\n".encode())  # in one piece, from several processes

    def write(self, name: str, first: int, number: int) -> None:
        """Write, and take every second number back."""
        if self.place.is_async:
            loop = LOOP if os.getpid() == PARENT else asyncio.new_event_loop()
            loop.run_until_complete(self.write_async(name, first, number))
            return
        with DualWriter(self.store, self.config(name)) as writer:
            writer.recover()
            for n in range(first, first + number):
                with suppress(KeyError), writer.transaction() as txn:
                    dual_write_stores.write(KIND, txn.handle, n)
                    txn.send(self.topic, str(n).encode())
                    if n % 2:
                        raise KeyError(n)

    async def write_async(self, name: str, first: int, number: int) -> None:
        async with AioDualWriter(self.store, self.config(name)) as writer:
            await writer.recover()
            for n in range(first, first + number):
                with suppress(KeyError):
                    async with writer.transaction() as txn:
                        await dual_write_stores.write(KIND, txn.handle, n)
                        await txn.send(self.topic, str(n).encode())
                        if n % 2:
                            raise KeyError(n)

    def config(self, name: str) -> dict[str, object]:
        return {
            "bootstrap.servers": SERVERS,
            "transactional.id": f"{self.topic}-{name}",
            "transaction.two.phase.commit.enable": "true",
        }


if __name__ == "__main__":
    for at in range(0, len(CASES), 4):
        Case(*CASES[at : at + 4]).run()
