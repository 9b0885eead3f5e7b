"""A table and a topic that must agree, and writers whose process ends after a given step."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from sqlalchemy import Engine, PoolProxiedConnection, event, text
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import DualWriter, SqlStore
from tallystick.dualwrite.block.steps import RecipeStep, Wait
from tallystick.dualwrite.stores.sql import SqlTransaction
from tallystick.errors import InDoubt
from tallystick.testing import EmbeddedBroker, eventually

NOTING = ["begin settling", "settle", "commit settled"]
RECOVERY = ["claim", "describe cluster", "describe", "init", "check owner", "complete", *NOTING]
PAYMENT = ["begin database", "begin", "send", "prepare", "record", "commit database", "commit"]
DECIDED_PAYMENT = [*PAYMENT[:-1], "start commit", "confirm commit"]
_names = count()


def new_name() -> str:
    """Return an unused name for a topic, a transactional id and a table."""
    return f"pay-{next(_names)}"


Writer = DualWriter[SqlTransaction]


class Crashed(BaseException):
    """Stands for the end of the process."""


@dataclass
class Crash:
    """Watches steps; after the n-th one, or the first `at`, the process is gone and takes no more steps."""

    after: int = 0
    at: str = ""
    struck: bool = False
    over: bool = False
    names: list[str] = field(default_factory=list)

    def __call__(self, number: int, step: RecipeStep, done: bool) -> None:
        if self.over:
            return
        if self.struck:
            raise Crashed
        if done:
            self.names.append(step.name)
            if number == self.after or step.name == self.at:
                self.struck = True
                raise Crashed


@dataclass
class World:
    """A table and a topic that must agree; every life has its own connections."""

    broker: EmbeddedBroker
    make_engine: Callable[[], Engine]
    topic: str
    settings: dict[str, object] = field(default_factory=dict)
    wait: Wait = "committed"
    lives: list[tuple[Writer, Crash | None, list[PoolProxiedConnection]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_topic(self.broker, self.topic)
        self.engine = self.make_engine()
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE {self.table} (n INTEGER, what VARCHAR(50))"))
        self.store = SqlStore(self.engine)
        self.store.create()

    @property
    def table(self) -> str:
        return self.topic.replace("-", "_")

    @property
    def config(self) -> dict[str, object]:
        servers = self.broker.bootstrap_servers
        return {"bootstrap.servers": servers, "transactional.id": self.topic, **self.settings}

    def life(self, watch: Crash | None = None) -> Writer:
        engine = self.make_engine()
        opened: list[PoolProxiedConnection] = []
        event.listen(engine, "checkout", lambda _connection, _record, proxy: opened.append(proxy))
        writer = DualWriter(SqlStore(engine), self.config, wait=self.wait, watch=watch)
        self.lives.append((writer, watch, opened))
        return writer

    def cut(self) -> None:
        """Close the last life's database connections, like those of a process that is gone."""
        for connection in self.lives[-1][2]:
            if connection.is_valid:
                connection.invalidate()

    def pay(self, writer: Writer, n: int, what: str) -> None:
        with writer.transaction() as txn:
            txn.connection.execute(text(f"INSERT INTO {self.table} VALUES ({n}, '{what}')"))
            txn.send(self.topic, what.encode())

    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return list(connection.execute(text(f"SELECT what FROM {self.table} ORDER BY n")).scalars())

    def check(self) -> list[str]:
        """Return the payments that both sides have."""
        rows = self.rows()
        eventually(lambda: committed_values(self.broker, self.topic, 0) == rows)
        return rows

    def close(self) -> None:
        for writer, watch, _ in self.lives:
            if watch is not None:
                watch.over = True
            with suppress(InDoubt):
                writer.close()
        self.lives.clear()
        self.engine.dispose()


MakeWorld = Callable[..., World]


def worlds(broker: EmbeddedBroker, make_engine: Callable[[str], Engine]) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(wait: Wait = "committed", **settings: object) -> World:
        name = new_name()
        made.append(World(broker, lambda: make_engine(name), name, settings, wait))
        return made[-1]

    yield make
    for world in made:
        world.close()
