"""The Celery task over writers that are made up: its key, its process, and an outcome in doubt."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from celery.signals import worker_process_init
from sqlalchemy.exc import OperationalError

from tallystick.client.errors import Unreachable
from tallystick.dualwrite import IdempotencyKey, NoFreeId, WriterFenced
from tallystick.dualwrite.contrib import celery as module
from tallystick.dualwrite.contrib.celery import DualWriteTask
from tallystick.dualwrite.rules.refusals import is_conflict
from tallystick.kernel.errors import InDoubt


class MadeUpWriters:
    """Writers that run work at once, without a database, and remember what they were asked for."""

    def __init__(self, number: int) -> None:
        self.events: list[Any] = [("made", number)]
        self.doubts = 0
        self.failures: list[Exception] = []

    def recover(self) -> str:
        self.events.append("recovered")
        return "nothing to do"

    def close(self) -> None:
        self.events.append("closed")

    def run(self, work: Callable[[Any], Any], *, retries: Any, idempotency_key: IdempotencyKey | None) -> Any:
        self.events.append(idempotency_key)
        if self.failures:
            raise self.failures.pop(0)
        result = work("txn")
        if self.doubts:
            self.doubts -= 1
            raise InDoubt("the answer was lost")
        return result


class PaymentTask(DualWriteTask):
    abstract = True
    made: list[MadeUpWriters] = []  # noqa: RUF012 - Celery copies the class for each task

    def make_writers(self, number: int) -> Any:
        self.made.append(MadeUpWriters(number))
        return self.made[-1]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(module, "_of_this_process", module._ProcessWriters())
    monkeypatch.setattr(PaymentTask, "made", [])
    made = Celery("shop", broker="memory://")
    made.conf.task_always_eager = True
    yield made
    made.close()


def declare(app: Celery, name: str = "shop.pay") -> Any:
    @app.task(base=PaymentTask, name=name, default_retry_delay=0, shared=False)
    def pay(txn: Any, customer: str, *, cents: int) -> list[Any]:
        return [txn, customer, cents]

    return pay


def test_the_id_of_a_task_is_its_key(app: Celery) -> None:
    result = declare(app).apply_async(["ann"], {"cents": 350}, task_id="task-7").get()
    assert result == ["txn", "ann", 350]
    (writers,) = PaymentTask.made
    assert writers.events == [("made", 0), "recovered", IdempotencyKey("shop.pay", "task-7")]


def test_a_direct_call_has_no_key(app: Celery) -> None:
    assert declare(app)("ann", cents=350) == ["txn", "ann", 350]
    assert PaymentTask.made[0].events[-1] is None


def test_the_tasks_of_a_process_share_its_writers(app: Celery) -> None:
    for name in ("shop.pay", "shop.refund", "shop.pay"):
        declare(app, name).apply_async(["ann"], {"cents": 350})
    assert len(PaymentTask.made) == 1
    module._of_this_process.close()
    assert PaymentTask.made[0].events[-1] == "closed"


def test_a_recovery_that_fails_is_tried_again(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    pay = declare(app)

    def fail(_: MadeUpWriters) -> str:
        raise ConnectionError("the database is gone")

    with monkeypatch.context() as broken:
        broken.setattr(MadeUpWriters, "recover", fail)
        with pytest.raises(ConnectionError):
            pay("ann", cents=350)
    pay("ann", cents=350)
    assert PaymentTask.made[0].events == [("made", 0), "recovered", None]


def test_a_task_in_doubt_is_sent_again_with_its_id(app: Celery) -> None:
    """[DW-3] [DW-16] The key tells then whether it was committed."""
    pay = declare(app)
    pay.get_writers().doubts = 1
    assert pay.apply_async(["ann"], {"cents": 350}, task_id="task-7").get() == ["txn", "ann", 350]
    key = IdempotencyKey("shop.pay", "task-7")
    assert PaymentTask.made[0].events[-2:] == [key, key]
    PaymentTask.made[0].doubts = 1
    with pytest.raises(InDoubt):
        pay("ann", cents=350)


@pytest.mark.parametrize(
    "failure",
    [
        Unreachable("localhost:9092", "refused"),
        NoFreeId("none of 1"),
        WriterFenced("payments-1", "owner"),
        OperationalError("INSERT", {}, sqlite3.OperationalError("the server is gone")),
    ],
    ids=["Kafka", "ids", "fenced", "database"],
)
def test_a_task_that_met_an_outage_is_sent_again(app: Celery, failure: Exception) -> None:
    """Celery acknowledges a message whose task has failed: the payment would be lost."""
    pay = declare(app)
    pay.get_writers().failures = [failure]
    assert pay.apply_async(["ann"], {"cents": 350}, task_id="task-7").get() == ["txn", "ann", 350]
    key = IdempotencyKey("shop.pay", "task-7")
    assert PaymentTask.made[0].events[-2:] == [key, key]


def test_a_task_whose_work_fails_is_not_sent_again(app: Celery) -> None:
    pay = declare(app)
    pay.get_writers().failures = [ValueError("no such customer")]
    with pytest.raises(ValueError, match="no such customer"):
        pay.apply_async(["ann"], {"cents": 350}, task_id="task-7").get()
    assert PaymentTask.made[0].events[-1] == IdempotencyKey("shop.pay", "task-7")


def locked() -> OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorname = "SQLITE_BUSY"
    return OperationalError("INSERT", {}, error)


def retry_later(task: Any, exc: Exception) -> None:
    raise task.retry(countdown=0)


def retry_later_because_of(task: Any, exc: Exception) -> None:
    raise task.retry(countdown=0, exc=exc) from exc


def reject(_: Any, exc: Exception) -> None:
    raise Reject(exc, requeue=False)


def ignore(_: Any, exc: Exception) -> None:
    raise Ignore from exc


class RepeatingWriters(MadeUpWriters):
    """Writers that run the work once more after a conflict, as `run` does."""

    def run(self, work: Callable[[Any], Any], *, retries: Any, idempotency_key: IdempotencyKey | None) -> Any:
        self.events.append(idempotency_key)
        try:
            return work("txn")
        except Exception as exc:
            if is_conflict(exc):
                return work("txn")
            raise


class RepeatingTask(PaymentTask):
    abstract = True

    def make_writers(self, number: int) -> Any:
        self.made.append(RepeatingWriters(number))
        return self.made[-1]


@pytest.mark.parametrize(
    ("answer", "state", "messages"),
    [
        (retry_later, "RETRY", 1),
        (retry_later_because_of, "RETRY", 1),
        (reject, "REJECTED", 0),
        (ignore, "IGNORED", 0),
    ],
)
def test_what_a_function_tells_celery_stands(
    app: Celery,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Any, Exception], None],
    state: str,
    messages: int,
) -> None:
    """It is sent again as often as the function says, although an outage or a conflict was its reason."""
    sent: list[Signature] = []
    monkeypatch.setattr(Signature, "apply_async", lambda signature: sent.append(signature))

    @app.task(base=RepeatingTask, name="shop.pay", bind=True, shared=False)
    def pay(self: Any, txn: Any) -> None:
        try:
            raise locked()
        except OperationalError as exc:
            answer(self, exc)

    request = {"id": "task-7", "retries": 0, "called_directly": False, "delivery_info": {}, "is_eager": False}
    _, info, _, _ = build_tracer(pay.name, pay, app=app)("task-7", (), {}, request)
    assert info is not None
    assert info.state == state
    assert len(sent) == messages


def test_a_process_starts_while_its_recovery_goes_on(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery kills a process that has not started after four seconds, and its replacement, and so on."""
    pay = declare(app)
    monkeypatch.setattr(module, "current_app", app)
    monkeypatch.setattr(module, "CLOSE_WAIT_S", 0.01)
    began, may_end = threading.Event(), threading.Event()

    def recover(writers: MadeUpWriters) -> str:
        began.set()
        assert may_end.wait(60)
        return recover_at_once(writers)

    recover_at_once = MadeUpWriters.recover
    monkeypatch.setattr(MadeUpWriters, "recover", recover)
    worker_process_init.send(sender=None)
    assert began.wait(60)
    module._of_this_process.close()  # nor does its end wait for it
    may_end.set()
    assert pay("ann", cents=350) == ["txn", "ann", 350]
    assert PaymentTask.made[0].events == [("made", 0), "recovered", None]
