"""One dual write over one of the stores, in a process that kills itself after a step of the recipe.

    python store_child.py KIND WHERE BOOTSTRAP STEP VALUE

STEP is the number of a step, or a name for the first such step in the transaction; 0 for none.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tallystick.dualwrite import (
    AsyncSqlStore,
    DeltaStore,
    DjangoStore,
    DualWriter,
    RocksStore,
    ZooKeeperStore,
    aio,
)
from tallystick.dualwrite.block.steps import RecipeStep

TOPIC = "matrix"


def killer(step: str) -> Callable[[int, RecipeStep, bool], None]:
    """Return a watch that kills this process (SIGKILL) after the step has succeeded."""
    begun = False

    def watch(number: int, taken: RecipeStep, done: bool) -> None:
        nonlocal begun
        begun = begun or taken.name == "begin database"
        if done and (str(number) == step or (begun and taken.name == step)):
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def rocksdb(path: str) -> tuple[RocksStore, Callable[[Any, str], None]]:
    from rocksdict import Rdict

    return RocksStore(Rdict(path)), lambda txn, value: txn.handle.put(value, value)


def zookeeper(where: str) -> tuple[ZooKeeperStore, Callable[[Any, str], None]]:
    from kazoo.client import KazooClient

    hosts, root = where.split("|")
    client = KazooClient(hosts)
    client.start()
    client.ensure_path(f"{root}-rows")
    return ZooKeeperStore(client, root), lambda txn, value: txn.handle.create(f"{root}-rows/{value}")


def django(where: str) -> tuple[DjangoStore, Callable[[Any, str], None]]:
    import django
    from django.conf import settings

    settings.configure(DATABASES={"default": json.loads(where)}, LOGGING_CONFIG=None)
    django.setup()

    def write(txn: Any, value: str) -> None:
        with txn.connection.cursor() as cursor:
            cursor.execute("INSERT INTO mine VALUES (%s)", [value])

    return DjangoStore(), write


def delta(path: str) -> tuple[DeltaStore, Callable[[Any, str], None]]:
    return DeltaStore(path), lambda txn, value: txn.handle.append([{"v": value}])


def waiting(kind: str, where: str, config: dict[str, object], step: str, value: str) -> None:
    openers: dict[str, Callable[[str], tuple[Any, Callable[[Any, str], None]]]]
    openers = {
        "rocksdb": rocksdb,
        "zookeeper": zookeeper,
        "django": django,
        "delta": delta,
    }
    store, write = openers[kind](where)
    store.create()
    writer: DualWriter[Any] = DualWriter(store, config, watch=killer(step))
    writer.recover()
    with writer.transaction() as txn:
        write(txn, value)
        txn.send(TOPIC, value.encode())
    writer.close()


async def awaited(url: str, config: dict[str, object], step: str, value: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    store = AsyncSqlStore(engine)
    await store.create()
    async with aio.DualWriter(store, config, watch=killer(step)) as writer:
        await writer.recover()
        async with writer.transaction() as txn:
            await txn.session.execute(text("INSERT INTO mine VALUES (:v)"), {"v": value})
            await txn.send(TOPIC, value.encode())
    await engine.dispose()


def main(kind: str, where: str, bootstrap: str, step: str, value: str) -> None:
    config: dict[str, object] = {"bootstrap.servers": bootstrap, "transactional.id": f"matrix/{kind}"}
    if kind == "async":
        asyncio.run(awaited(where, config, step, value))
    else:
        waiting(kind, where, config, step, value)


if __name__ == "__main__":
    main(*sys.argv[1:])
