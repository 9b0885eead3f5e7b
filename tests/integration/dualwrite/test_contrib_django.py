"""`dual_write_atomic`: nests like `atomic`, runs what waits for the commit, and exempts views."""

# ruff: noqa: PT012 - a block may raise at its end

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.db import IntegrityError, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views import View
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic

from tallystick.client.errors import AbortRequired
from tallystick.dualwrite import (
    CommitUnknown,
    DjangoStore,
    ManagedByWriter,
    NotCommitted,
    Outcome,
    WriteInDoubt,
    WriterPool,
)
from tallystick.dualwrite.block.steps import RecipeStep
from tallystick.dualwrite.contrib.django import DualWriteBlock, current_part, dual_write_atomic
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

ALIAS = "atomic_shop"

if not settings.configured:
    settings.configure(LOGGING_CONFIG=None)
    django.setup()


class Shop:
    """A table and a topic that must agree."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker, self.topic = broker, new_name()
        make_topic(broker, self.topic)
        self.events: list[str] = []
        self.fails_at = ""
        self.failure: Exception = CommitUnknown("the answer was lost")
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": self.topic}
        self.writers = WriterPool(DjangoStore(ALIAS), config, size=1, watch=self.watch)
        self.writers.recover()
        self.events.clear()

    def watch(self, _: int, step: RecipeStep, done: bool) -> None:
        if done:
            self.events.append(step.name)
        if self.fails_at == f"{'after' if done else 'before'} {step.name}":
            self.fails_at = ""
            raise self.failure

    def atomic(self) -> DualWriteBlock:
        return dual_write_atomic(self.writers, using=ALIAS)

    def pay(self, what: str, *, fails: bool = False) -> None:
        """A payment in a block of its own, wherever it is called."""
        with self.atomic() as part:
            with connections[ALIAS].cursor() as cursor:
                cursor.execute("INSERT INTO paid VALUES (%s)", [what])
            part.send(self.topic, what.encode())
            if fails:
                raise ZeroDivisionError

    def check(self) -> list[str]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("SELECT what FROM paid")
            rows = [what for (what,) in cursor.fetchall()]
        eventually(lambda: committed_values(self.broker, self.topic, 0) == rows)
        return rows


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Shop]:
    database: dict[str, Any]
    if request.param == "sqlite":
        options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": tmp_path / "rows.db",
            "OPTIONS": options,
        }
    else:
        server = request.getfixturevalue("postgresql")
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": server.new_database()}
        database |= {"USER": "postgres", "HOST": "127.0.0.1", "PORT": server.port}
    database["ATOMIC_REQUESTS"] = True
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: database})[ALIAS]
    if hasattr(connections._connections, ALIAS):
        del connections[ALIAS]
    DjangoStore(ALIAS).create()
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("CREATE TABLE paid (what VARCHAR(50))")
    made = Shop(broker)
    yield made
    made.writers.close()
    connections[ALIAS].close()
    del connections.settings[ALIAS], connections[ALIAS]


def test_blocks_nest_and_each_takes_back_its_own(shop: Shop) -> None:
    with shop.atomic():
        shop.pay("a")
        with pytest.raises(ZeroDivisionError):
            shop.pay("b", fails=True)
        with pytest.raises(ZeroDivisionError), shop.atomic():
            shop.pay("c")
            raise ZeroDivisionError
        with shop.atomic():
            shop.pay("d")
            with pytest.raises(ZeroDivisionError):
                shop.pay("e", fails=True)
        current_part(ALIAS).send(shop.topic, b"f")
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("INSERT INTO paid VALUES ('f')")
    assert shop.check() == ["a", "d", "f"]
    assert shop.events.count("commit database") == 1


@pytest.mark.parametrize("queued", [["part"], []], ids=["after another", "alone"])
def test_an_inner_block_whose_record_is_refused_keeps_no_rows(shop: Shop, queued: list[str]) -> None:
    """[DW-2] Its error leaves the inner block, and a caller that goes on commits only what is around."""
    with suppress(AbortRequired), shop.atomic():
        shop.pay("outer")
        with pytest.raises(TypeError), shop.atomic() as part:
            with connections[ALIAS].cursor() as cursor:
                cursor.execute("INSERT INTO paid VALUES ('part')")
            for each in queued:
                part.send(shop.topic, each.encode())
            part.send(shop.topic, 5)
    assert shop.check() in ([], ["outer"])
    shop.pay("next")
    assert shop.check()[-1] == "next"


def test_a_block_that_raises_takes_back_all_that_is_in_it(shop: Shop) -> None:
    with pytest.raises(ZeroDivisionError), shop.atomic():
        shop.pay("a")
        raise ZeroDivisionError
    with pytest.raises(ManagedByWriter, match="no dual_write_atomic block"):
        current_part(ALIAS)
    shop.pay("b")
    assert shop.check() == ["b"]


def test_callbacks_run_once_both_halves_are_decided(shop: Shop) -> None:
    """Of the outermost block and of those inside it; of none that was rolled back."""
    with shop.atomic():
        transaction.on_commit(lambda: shop.events.append("callback a"), using=ALIAS)
        shop.pay("a")
        with pytest.raises(ZeroDivisionError), shop.atomic():
            transaction.on_commit(lambda: shop.events.append("callback b"), using=ALIAS)
            raise ZeroDivisionError
        with shop.atomic():
            transaction.on_commit(lambda: shop.events.append("callback c"), using=ALIAS)
    callbacks = [each for each in shop.events if each.startswith("callback")]
    assert callbacks == ["callback a", "callback c"]
    assert shop.events.index("record") < shop.events.index("callback a") < shop.events.index("commit")
    shop.events.clear()
    with pytest.raises(ZeroDivisionError), shop.atomic():
        transaction.on_commit(lambda: shop.events.append("callback"), using=ALIAS)
        raise ZeroDivisionError
    shop.pay("d")
    assert "callback" not in shop.events
    assert shop.check() == ["a", "d"]


def test_an_error_that_the_database_has_raised_in_an_inner_block_is_survived(shop: Shop) -> None:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("CREATE UNIQUE INDEX once ON paid (what)")
    with shop.atomic():
        shop.pay("a")
        with pytest.raises(IntegrityError):
            shop.pay("a")
        shop.pay("b")
    assert shop.check() == ["a", "b"]


def test_an_atomic_block_around_is_refused(shop: Shop) -> None:
    with transaction.atomic(using=ALIAS), pytest.raises(ManagedByWriter, match="ATOMIC_REQUESTS"):
        shop.pay("a")
    with shop.atomic(), transaction.atomic(using=ALIAS):
        shop.pay("b")
    assert shop.check() == ["b"]


def test_a_decorated_view_is_exempt_from_atomic_requests(shop: Shop) -> None:
    def undecorated(what: str) -> None:
        shop.pay(what)

    decorated = shop.atomic()(undecorated)
    make = BaseHandler().make_view_atomic
    with pytest.raises(ManagedByWriter, match="ATOMIC_REQUESTS"):
        make(undecorated)("a")
    make(decorated)("b")
    make(decorated)("c")
    assert shop.check() == ["b", "c"]


def test_the_alias_is_the_one_of_the_store(shop: Shop) -> None:
    with pytest.raises(ManagedByWriter, match=f"pass using='{ALIAS}'"), dual_write_atomic(shop.writers):
        pass
    shop.pay("a")
    assert shop.check() == ["a"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_doubt_is_recovered_by_the_block(shop: Shop, when: str) -> None:
    """[DW-3] It raises only if it is not committed."""
    shop.fails_at = f"{when} commit database"
    if when == "before":
        with pytest.raises(WriteInDoubt):
            shop.pay("a")
    else:
        shop.pay("a")
    shop.pay("b")
    assert shop.check() == (["b"] if when == "before" else ["a", "b"])


def test_the_doubt_of_another_writer_commits_nothing(shop: Shop) -> None:
    """[DW-3] A receiver of a signal may have used one, and its write is committed; this one is not."""
    doubt = WriteInDoubt("audit-1: Kafka's half is to be finished", {})
    doubt.set_outcome(Outcome.COMMITTED)
    shop.fails_at, shop.failure = "before commit database", NotCommitted(doubt)
    with pytest.raises(WriteInDoubt, match="audit-1"):
        shop.pay("a")
    shop.pay("b")
    assert shop.check() == ["b"]


def test_a_key_is_kept_with_the_rows_of_the_models(shop: Shop) -> None:
    """[DW-16]"""

    @shop.writers.transactional(idempotency_key="what")
    def pay(txn: Any, what: str) -> dict[str, str]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("INSERT INTO paid VALUES (%s)", [what])
        txn.send(shop.topic, what.encode())
        if what == "fails":
            raise ZeroDivisionError
        return {"paid": what}

    assert [pay("a"), pay("b"), pay("a")] == [{"paid": "a"}, {"paid": "b"}, {"paid": "a"}]
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            pay("fails")
    assert DjangoStore(ALIAS).forget_idempotency_keys(older_than_ms=600_000) == 0
    assert DjangoStore(ALIAS).forget_idempotency_keys(older_than_ms=-600_000) == 2
    pay("a")
    assert shop.check() == ["a", "b", "a"]


async def pay_async() -> None:
    """A coroutine function runs after the block around its call has ended."""


def pay_lazily() -> Iterator[None]:
    yield


async def pay_lazily_async() -> Any:
    yield


@pytest.mark.parametrize("function", [pay_async, pay_lazily, pay_lazily_async])
def test_a_function_that_runs_after_its_call_is_refused(shop: Shop, function: Any) -> None:
    with pytest.raises(TypeError, match="after the block has ended"):
        shop.atomic()(function)


def test_a_block_that_is_kept_can_be_used_by_many_threads(shop: Shop) -> None:
    """As `transaction.atomic` can: what is open belongs to the thread."""
    if connections[ALIAS].vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    config = {"bootstrap.servers": shop.broker.bootstrap_servers, "transactional.id": f"{shop.topic}-two"}
    inside = threading.Barrier(2, timeout=60)
    first_has_left = threading.Event()
    with WriterPool(DjangoStore(ALIAS), config, size=2) as writers:
        writers.recover()
        block = dual_write_atomic(writers, using=ALIAS)

        def pay(what: str) -> None:
            with block, block as part:
                part.send(shop.topic, what.encode())
                with connections[ALIAS].cursor() as cursor:
                    cursor.execute("INSERT INTO paid VALUES (%s)", [what])
                inside.wait()
                if what == "b":
                    assert first_has_left.wait(60)
            first_has_left.set()
            connections[ALIAS].close()

        with ThreadPoolExecutor(2) as executor:
            for each in [executor.submit(pay, "a"), executor.submit(pay, "b")]:
                each.result()
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT what FROM paid ORDER BY what")
        assert cursor.fetchall() == [("a",), ("b",)]
    eventually(lambda: sorted(committed_values(shop.broker, shop.topic, 0)) == ["a", "b"])


def test_a_view_that_is_a_class_is_exempt_if_its_dispatch_is_decorated(shop: Shop) -> None:
    class Pay(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            shop.pay("a")
            return HttpResponse(status=201)

    decorated = method_decorator(shop.atomic(), name="dispatch")(Pay)
    make = BaseHandler().make_view_atomic
    request = HttpRequest()
    request.method = "POST"
    assert make(decorated.as_view())(request).status_code == 201
    assert shop.check() == ["a"]
    assert shop.events.count("commit database") == 1
