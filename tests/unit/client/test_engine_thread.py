"""The engine thread: who may wait for it, how long, and what becomes of it in forks and at the end."""

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import ClassVar

import pytest

from tallystick.client.blocking import thread as thread_module
from tallystick.client.blocking.thread import EngineThread, engine_thread, run_in_caller
from tallystick.client.errors import ClientError, Closed, IllegalState, TimedOut
from tallystick.client.producer.batches.delivery import BatchOutcome, Delivery
from tallystick.kernel.errors import Effect
from tallystick.testing import FakeClock, eventually


async def value(result: object) -> object:
    return result


async def raising(error: BaseException) -> None:
    raise error


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def run_program(text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *flags, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_results_and_errors_come_back() -> None:
    assert engine_thread().run(value(7), 10, "value") == 7
    with pytest.raises(ZeroDivisionError):
        engine_thread().run(raising(ZeroDivisionError()), 10, "raising")


def test_what_ends_a_program_ends_the_call_and_not_the_thread() -> None:
    engine = engine_thread()
    with pytest.raises(SystemExit):
        engine.run(raising(SystemExit(3)), 10, "raising")
    assert engine.run(value(7), 10, "value") == 7


def test_there_is_one_thread_for_all() -> None:
    made: list[EngineThread] = []
    threads = [threading.Thread(target=lambda: made.append(engine_thread())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(made) == {engine_thread()}
    assert [t.daemon for t in threading.enumerate() if t.name == "tallystick-engine"].count(True) == 1


def test_a_started_call_is_waited_for_as_often_as_one_likes() -> None:
    engine = engine_thread()
    started = engine.start(value(7), "value")
    assert [started.wait(10), started.wait(10)] == [7, 7]
    assert started.is_done
    failing = engine.start(raising(ZeroDivisionError()), "raising")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.wait(10)


def test_a_busy_engine_thread_is_waited_for_beyond_the_limit_of_a_call() -> None:
    """[CLI-2] The limit is of the coroutine, which has not even begun while another one keeps the thread."""
    engine = engine_thread()
    released = threading.Event()
    engine.call_soon(released.wait)
    threading.Timer(0.05, released.set).start()
    assert engine.run(value(7), 0, "value") == 7


def test_a_started_call_goes_on_when_a_wait_for_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLI-2] Its limit ends a wait alone."""
    engine = engine_thread()
    done = engine.call(asyncio.Event, "Event")

    async def wait_for_event() -> int:
        await done.wait()
        return 7

    started = engine.start(wait_for_event(), "waiting")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_grace_s", 0.0)
        with pytest.raises(TimedOut, match="engine thread = 50 ms") as late:
            started.wait(0.05)
    assert late.value.effect is Effect.UNKNOWN
    assert not started.is_done
    engine.call(done.set, "set")
    assert started.wait(10) == 7


def test_a_started_call_is_not_waited_for_on_the_engine_thread() -> None:
    """[CLI-60]"""
    engine = engine_thread()
    started = engine.start(value(7), "value")
    with pytest.raises(IllegalState, match="wait for itself"):
        engine.call(lambda: started.wait(10), "waiting")
    assert started.wait(10) == 7


def test_a_wait_ends_and_its_outcome_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLI-2]"""
    monkeypatch.setattr(engine_thread(), "_grace_s", 0.0)
    with pytest.raises(TimedOut, match="engine thread = 50 ms") as late:
        engine_thread().run(never(), 0.05, "never")
    assert late.value.effect is Effect.UNKNOWN


def test_a_call_from_the_engine_thread_is_refused() -> None:
    """[CLI-60] It would wait for itself."""
    engine = engine_thread()

    async def nested() -> object:
        return engine.run(value(7), 10, "nested")

    with pytest.raises(IllegalState, match="nested: called from a callback on the engine thread"):
        engine.run(nested(), 10, "outer")


def test_a_delivery_is_looked_at_and_not_waited_for_on_the_engine_thread() -> None:
    """[CLI-60] Any other thread may wait, one with a loop of its own included."""
    outcome = BatchOutcome("t", 0)

    def wait(timeout: float | None) -> type[BaseException]:
        with pytest.raises(ClientError) as caught:
            Delivery(outcome, 0).result(timeout)
        assert caught.value.effect is Effect.UNKNOWN, "the record is still on its way"
        return caught.type

    async def wait_on_a_loop() -> type[BaseException]:
        return wait(0.01)

    refusals = [engine_thread().call(lambda limit=limit: wait(limit), "wait") for limit in (None, 10, 0)]
    assert refusals == [IllegalState, IllegalState, TimedOut]
    assert asyncio.run(wait_on_a_loop()) is TimedOut
    outcome.complete(Closed("closed"))
    assert isinstance(engine_thread().call(Delivery(outcome, 0).exception, "exception"), Closed)


def test_a_callback_runs_in_the_thread_that_waits() -> None:
    engine = engine_thread()

    async def ask(what: Awaitable[object]) -> object:
        return await what

    def callback() -> tuple[int, object]:
        # It may call again: the engine is not the one that is busy.
        return threading.get_ident(), engine.run(value(7), 10, "inner")

    assert engine.run(ask(run_in_caller(callback)), 10, "ask") == (threading.get_ident(), 7)


def test_what_a_callback_raises_is_raised_there_and_here() -> None:
    seen: list[BaseException] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    async def ask() -> None:
        try:
            await run_in_caller(interrupted)
        except BaseException as exc:
            seen.append(exc)
            raise

    with pytest.raises(KeyboardInterrupt):
        engine_thread().run(ask(), 10, "ask")
    assert isinstance(seen[0], KeyboardInterrupt)


def test_the_time_of_a_callback_is_not_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = engine_thread(), FakeClock()

    def callback() -> None:
        clock.advance(100_000)

    async def ask() -> str:
        await run_in_caller(callback)
        return "done"

    monkeypatch.setattr("tallystick.client.blocking.thread.monotonic", lambda: clock.monotonic_ms() / 1000)
    assert engine.run(ask(), 30, "ask") == "done"


def test_a_thread_that_ended_is_replaced_and_says_so() -> None:
    engine = EngineThread()
    told: list[Closed] = []

    def wait() -> None:
        try:
            engine.run(never(), 30, "never")
        except Closed as exc:
            told.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: engine.call(lambda: len(asyncio.all_tasks()), "tasks") >= 3)
    engine.shut_down(5.0)
    waiting.join(10)
    assert told
    assert not engine.is_alive
    with pytest.raises(Closed):
        engine.run(value(7), 10, "value")


@pytest.mark.slow
def test_no_import_makes_a_thread() -> None:
    done = run_program("""
        import threading
        import tallystick
        tallystick.Producer, tallystick.Consumer, tallystick.Admin, tallystick.aio
        assert threading.active_count() == 1, threading.enumerate()
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_forked_child_has_its_own_and_leaves_its_parents_behind() -> None:
    """[CLI-61]"""
    done = run_program(
        """
        import asyncio, gc, os, sys
        from tallystick.client.blocking.thread import engine_thread
        from tallystick.errors import IllegalState

        async def value(): return os.getpid()

        def in_child():
            try:
                parents.run(value(), 10, "value")
            except IllegalState as exc:
                assert "opened before the fork" in str(exc)
            assert engine_thread() is not parents
            assert engine_thread().run(value(), 10, "value") == os.getpid()
            gc.collect()

        parents = engine_thread()
        assert parents.run(value(), 10, "value") == os.getpid()
        for _ in range(3):
            child = os.fork()
            if child == 0:
                in_child()
                sys.exit(0)  # with all that the interpreter does at its end
            assert os.waitpid(child, 0)[1] == 0
            # The child shares the parent's epoll set, and must not have taken anything out of it.
            assert parents.run(value(), 10, "value") == os.getpid()
        """,
        "-W",
        "ignore::DeprecationWarning",  # Python 3.12: forks and threads
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_end_of_the_interpreter_does_not_wait_for_a_broker_that_is_away() -> None:
    """[CLI-63] Nobody closed the producer, and nothing it says can be delivered."""
    done = run_program("""
        from tallystick import Producer
        from tallystick.errors import TimedOut
        producer = Producer({"bootstrap.servers": "127.0.0.1:9", "max.block.ms": 100})
        try:
            producer.send("t", b"x")
        except TimedOut:
            print("the exit begins")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the exit begins\n", "")


def test_the_clients_that_are_open_at_the_end_share_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """[CLI-63] A close that takes all of the time leaves none to the next."""
    engine, clock = EngineThread(), FakeClock()

    class Slow:
        limits_s: ClassVar[list[float]] = []

        def close(self, timeout_s: float) -> None:
            self.limits_s.append(timeout_s)
            clock.advance(1_500)
            raise TimedOut("timeout_s", 1_500, "close")

        def mark_forked(self) -> None: ...

    clients = [Slow() for _ in range(3)]
    for client in clients:
        engine.register(client)
    monkeypatch.setattr("tallystick.client.blocking.thread.monotonic", lambda: clock.monotonic_ms() / 1000)
    engine.shut_down(2.0)
    assert Slow.limits_s == [2.0, 0.5, 0]
    eventually(lambda: not engine.is_alive)


@pytest.mark.parametrize(
    ("name", "asked", "patched", "remedy"),
    [
        ("gevent.monkey", "is_module_patched", "threading", r"gevent.*patch_all\(thread=False\)"),
        ("eventlet.patcher", "is_monkey_patched", "thread", r"eventlet.*monkey_patch\(thread=False\)"),
    ],
)
def test_where_greenlets_replace_threads_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: str, patched: str, remedy: str
) -> None:
    """There the loop would let nothing else run: each call would hang, without a limit."""
    monkeypatch.setattr(thread_module, "_current", None)
    module = SimpleNamespace(**{asked: lambda which: which == patched})
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(IllegalState, match=remedy):
        engine_thread()
    setattr(module, asked, lambda _: False)
    assert engine_thread().is_alive
    engine_thread().shut_down(1.0)
