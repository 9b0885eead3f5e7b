"""What happens behind the back of a writer over Django: its transaction ended, its savepoints, its forks."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, transaction
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.dualwrite import DjangoStore, DualWriter, ManagedByWriter
from tallystick.dualwrite.stores.django import DjangoTransaction
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

ALIAS = "shop"

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()

Writer = DualWriter[DjangoTransaction]


@dataclass
class Shop:
    """A table and a topic that must agree."""

    broker: EmbeddedBroker
    topic: str
    writer: Writer

    def rows(self) -> list[str]:
        return [what for (what,) in execute("SELECT what FROM paid ORDER BY n")]

    def records(self) -> list[str]:
        return committed_values(self.broker, self.topic, 0)

    def insert(self, n: int, what: str) -> None:
        execute(f"INSERT INTO paid VALUES ({n}, '{what}')")

    def pay(self, n: int, what: str) -> None:
        with self.writer.transaction(wait_visible=True) as txn:
            self.insert(n, what)
            txn.send(self.topic, what.encode())


def execute(statement: str) -> list[Any]:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def opened(broker: EmbeddedBroker, **database: Any) -> Iterator[Shop]:
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: database})[ALIAS]
    if hasattr(connections._connections, ALIAS):
        del connections[ALIAS]
    topic = new_name()
    make_topic(broker, topic)
    store = DjangoStore(ALIAS)
    store.create()
    execute("CREATE TABLE paid (n INTEGER, what VARCHAR(50))")
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    with DualWriter(store, config) as writer:
        writer.recover()
        yield Shop(broker, topic, writer)
    connections[ALIAS].close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shop(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        place = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "rows.db"}
    else:
        server = request.getfixturevalue("postgresql")
        place = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": server.new_database(),
            "USER": "postgres",
            "HOST": "127.0.0.1",
            "PORT": server.port,
        }
    with opened(broker, **place) as made:
        yield made


ENDINGS: dict[str, Callable[[], object]] = {
    "ROLLBACK": lambda: execute("ROLLBACK"),
    "COMMIT": lambda: execute("COMMIT"),
    "driver's rollback": lambda: connections[ALIAS].connection.rollback(),
    "driver's commit": lambda: connections[ALIAS].connection.commit(),
}


@pytest.mark.gate(3)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_behind_the_writer_is_refused(shop: Shop, ending: str, goes_on: bool) -> None:
    """[DW-11] Words are not sent; a driver's rows are gone, or committed; no record passes for theirs."""
    shop.pay(1, "first")
    with (
        pytest.raises(ManagedByWriter, match=r"ended inside|ends the database"),
        shop.writer.transaction() as txn,
    ):
        shop.insert(2, "before")
        txn.send(shop.topic, b"no")
        ENDINGS[ending]()
        if goes_on:
            shop.insert(3, "after")
    assert shop.rows() == ["first", *(["before"] if ending == "driver's commit" else [])]
    shop.writer.recover()
    shop.pay(4, "last")
    assert shop.records() == ["first", "last"]


def _close() -> None:
    connections[ALIAS].close()


def _mark_for_rollback() -> None:
    with suppress(KeyError), transaction.atomic(using=ALIAS, savepoint=False):
        raise KeyError


@pytest.mark.parametrize("spoil", [_close, _mark_for_rollback])
def test_a_block_that_can_only_be_rolled_back_commits_neither_half(
    shop: Shop, spoil: Callable[[], None]
) -> None:
    """[DW-2] Django itself would leave such a block in silence."""
    with pytest.raises(Exception, match=r"."), shop.writer.transaction() as txn:  # of Django, or ours
        shop.insert(1, "no")
        txn.send(shop.topic, b"no")
        spoil()
    assert shop.rows() == []
    shop.writer.recover()
    shop.pay(2, "a")
    assert shop.rows() == shop.records() == ["a"]


# ---- savepoints


def _refuse_bad(what: str) -> None:
    if what == "bad":
        raise ValueError(what)


def _by_atomic(shop: Shop, txn: Any, n: int, what: str) -> None:
    with transaction.atomic(using=ALIAS):
        shop.insert(n, what)
        txn.send(shop.topic, what.encode())
        _refuse_bad(what)


def _two_deep(shop: Shop, txn: Any, n: int, what: str) -> None:
    with transaction.atomic(using=ALIAS):
        shop.insert(n, what)
        with transaction.atomic(using=ALIAS):
            txn.send(shop.topic, what.encode())
        _refuse_bad(what)


def _by_hand(shop: Shop, txn: Any, n: int, what: str) -> None:
    made = transaction.savepoint(using=ALIAS)
    shop.insert(n, what)
    txn.send(shop.topic, what.encode())
    if what == "bad":
        transaction.savepoint_rollback(made, using=ALIAS)
        raise ValueError(what)
    transaction.savepoint_commit(made, using=ALIAS)


def _by_text(shop: Shop, txn: Any, n: int, what: str) -> None:
    execute("SAVEPOINT mine")
    shop.insert(n, what)
    txn.send(shop.topic, what.encode())
    execute("ROLLBACK TO SAVEPOINT mine" if what == "bad" else "RELEASE SAVEPOINT mine")


@pytest.mark.gate(3)
@pytest.mark.parametrize("pay", [_by_atomic, _two_deep, _by_hand, _by_text])
@pytest.mark.parametrize("bad", [True, False])
def test_records_of_a_savepoint_that_is_rolled_back_do_not_go_out(
    shop: Shop, pay: Callable[[Shop, Any, int, str], None], bad: bool
) -> None:
    """[DW-2] They have gone already, and take the whole transaction with them."""

    def pay_three() -> None:
        with shop.writer.transaction(wait_visible=True) as txn:
            for n, what in enumerate(("good", "bad" if bad else "fine", "good2")):
                with suppress(ValueError):
                    pay(shop, txn, n, what)

    if bad:
        with pytest.raises(ManagedByWriter, match="savepoint that was rolled back"):
            pay_three()
        assert shop.writer.ready
        assert shop.rows() == shop.records() == []
        return
    pay_three()
    assert shop.rows() == shop.records() == ["good", "fine", "good2"]


def test_records_of_the_writers_own_savepoint_are_kept_back(shop: Shop) -> None:
    """[DW-2]"""
    with shop.writer.transaction(wait_visible=True) as txn:
        for n, what in enumerate(("good", "bad", "good2")):
            with suppress(ValueError), txn.savepoint() as part:
                shop.insert(n, what)
                part.send(shop.topic, what.encode())
                _refuse_bad(what)
    assert shop.rows() == shop.records() == ["good", "good2"]


# ---- forks


@pytest.mark.gate(2)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("how", ["unwinds", "commits"])
def test_a_forked_child_leaves_the_transaction_to_its_parent(shop: Shop, how: str) -> None:
    """[DW-11] Its ROLLBACK would go over the parent's socket; its next statement does not, either."""
    if connections[ALIAS].vendor == "sqlite":
        pytest.skip("SQLite itself forbids to carry a connection over a fork")
    child = -1
    try:
        with shop.writer.transaction(wait_visible=True) as txn:
            shop.insert(1, "a")
            txn.send(shop.topic, b"a").result(30)
            child = os.fork()
            if child == 0 and how == "unwinds":
                raise SystemExit(7)
            if child:
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) == 7
    except (SystemExit, ManagedByWriter) as exc:
        if child == 0:
            refused = isinstance(exc, SystemExit) or "is a fork of it" in str(exc)
            alone = execute("SELECT what FROM paid") == []  # over a connection of its own
            os._exit(7 if refused and alone else 8)
        raise
    finally:
        if child == 0:
            os._exit(9)
    assert eventually(shop.records) == shop.rows() == ["a"]
