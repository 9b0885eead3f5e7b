"""A program that forks with its clients in every state: `python forking.py KIND SERVERS BROKER_PID`.

Its children try every public call of the clients their parent has opened, and end in both possible ways: at
once (`os._exit`), and normally, with `finally` blocks, garbage collection and the interpreter's own exit.
The parent continues its work, and checks that it ends as it should.
"""

# ruff: noqa: B023, PT017 - what is defined in a loop is called in it; a child has no pytest

import gc
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tallystick import Admin, Consumer, PreparedTxnState, Producer, RebalanceListener, TopicPartition, errors
from tallystick.testing import eventually

CHILD_S = 20
KIND, SERVERS, BROKER = sys.argv[1], sys.argv[2], int(sys.argv[3])
TOPIC = ""  # each state has its own; groups and transactional ids share the name
AT = TopicPartition(TOPIC, 0)
PARENT = os.getpid()

CALLS: dict[type, dict[str, Callable[..., object]]] = {
    Producer: {
        "send": lambda p: p.send(TOPIC, b"child"),
        "send_batch": lambda p: p.send_batch(TOPIC, [b"child"]),
        "flush": lambda p: p.flush(),
        "init_transactions": lambda p: p.init_transactions(),
        "begin_transaction": lambda p: p.begin_transaction(),
        "send_offsets_to_transaction": lambda p: p.send_offsets_to_transaction({AT: 1}, None),
        "prepare_transaction": lambda p: p.prepare_transaction(),
        "commit_transaction": lambda p: p.commit_transaction(),
        "start_commit": lambda p: p.start_commit(),
        "abort_transaction": lambda p: p.abort_transaction(),
        "complete_transaction": lambda p: p.complete_transaction(PreparedTxnState("")),
        "mode": lambda p: p.mode,
        "transaction_version": lambda p: p.transaction_version,
        "needs_claim": lambda p: p.needs_claim,
        "in_doubt": lambda p: p.in_doubt,
        "metrics": lambda p: p.metrics(),
    },
    Consumer: {
        "subscribe": lambda c: c.subscribe([TOPIC]),
        "assign": lambda c: c.assign([AT]),
        "unsubscribe": lambda c: c.unsubscribe(),
        "assignment": lambda c: c.assignment,
        "subscription": lambda c: c.subscription,
        "paused": lambda c: c.paused,
        "pause": lambda c: c.pause([AT]),
        "resume": lambda c: c.resume([AT]),
        "seek": lambda c: c.seek(AT, 0),
        "rewind": lambda c: c.rewind(),
        "note_committed": lambda c: c.note_committed({AT: 0}),
        "seek_to_beginning": lambda c: c.seek_to_beginning(),
        "seek_to_end": lambda c: c.seek_to_end(),
        "pin": lambda c: c.pin([AT]),
        "read_committed": lambda c: c.read_committed(),
        "position": lambda c: c.position(AT),
        "beginning_offsets": lambda c: c.beginning_offsets([AT]),
        "end_offsets": lambda c: c.end_offsets([AT]),
        "offsets_for_times": lambda c: c.offsets_for_times({AT: 0}),
        "poll": lambda c: c.poll(60.0),
        "poll_arrow": lambda c: c.poll_arrow(60.0),
        "wakeup": lambda c: c.wakeup(),
        "commit": lambda c: c.commit(),
        "commit_soon": lambda c: c.commit_soon(),
        "committed": lambda c: c.committed([AT]),
        "group_metadata": lambda c: c.group_metadata(),
        "metrics": lambda c: c.metrics(),
    },
}
ELSEWHERE = {"close", "mark_forked", "send_arrow", "config"}


def refused(call: Callable[[], object], kind: type[Exception] = errors.IllegalState) -> None:
    try:
        call()
    except kind as exc:
        assert "fork" in str(exc), exc
    else:
        raise AssertionError("a child used what its parent has opened")


def refuses(client: object) -> None:
    """Check that every public call is refused, and that closing, even repeatedly, has no effect."""
    kind = type(client)
    if isinstance(client, Admin):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name[0] != "_" and name not in ELSEWHERE:
                needed = [
                    p
                    for p in inspect.signature(method).parameters.values()
                    if p.default is p.empty and p.kind < 2
                ]
                refused(lambda: getattr(client, name)(*[[]] * (len(needed) - 1)))
    else:
        public = {name for name in dir(kind) if name[0] != "_"} - ELSEWHERE
        assert CALLS[kind].keys() == public, CALLS[kind].keys() ^ public
        for call in CALLS[kind].values():
            refused(lambda: call(client))
    client.close()
    client.close()
    repr(client)


def fork(check: Callable[[], object]) -> None:
    """Fork two children that check and then end, one at once and one normally; neither may hang."""
    for at_once in (True, False):
        child = os.fork()
        if child == 0:
            signal.alarm(CHILD_S)
            try:
                check()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            if at_once:
                os._exit(0)
            gc.collect()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, f"at once: {at_once}, status {status}"


@contextmanager
def broker_halted() -> Iterator[None]:
    """Suspend the broker inside the block, so that it answers nothing."""
    os.kill(BROKER, signal.SIGSTOP)
    try:
        yield
    finally:
        if os.getpid() == PARENT:
            os.kill(BROKER, signal.SIGCONT)


class Waiting:
    """A call in another thread, already waiting for the engine thread when the constructor returns."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.failed: BaseException | None = None

        def run() -> None:
            try:
                call()
            except BaseException as exc:
                self.failed = exc

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        eventually(self._waits)

    def _waits(self) -> bool:
        frame = sys._current_frames().get(self.thread.ident or 0)
        return frame is not None and frame.f_code.co_name == "_wait"

    def ends(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.failed is not None:
            raise self.failed


def producer(**settings: object) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": SERVERS, **named})


def consumer(**settings: object) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"group.id": TOPIC, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": SERVERS, "heartbeat.interval.ms": 50, **base, **named})


def written() -> list[bytes | None]:
    with consumer(isolation_level="read_committed") as reader:
        reader.assign([AT])
        reader.seek_to_beginning()
        end = reader.end_offsets([AT])[AT]
        read: list[bytes | None] = []
        while reader.position(AT) < end:
            read += [record.value for record in reader.poll(1.0)]
        return read


STATES: dict[str, Callable[[], object]] = {}


def state(run: Callable[[], object]) -> Callable[[], object]:
    STATES[run.__name__] = run
    return run


# ---------------------------------------------------------------------------------- a producer


@state
def producer_new() -> None:
    with producer() as own:
        fork(lambda: refuses(own))
        own.send(TOPIC, b"a").result(30)
    assert written() == [b"a"]


@state
def producer_idle() -> None:
    with producer() as own:
        own.send(TOPIC, b"a").result(30)
        fork(lambda: refuses(own))
        own.send(TOPIC, b"b").result(30)
    assert written() == [b"a", b"b"]


@state
def producer_forgotten_in_the_child() -> None:
    """Collect the child's copies of the sockets; none may be removed from the parent's epoll set."""
    kept = [producer()]
    kept[0].send(TOPIC, b"a").result(30)

    def check() -> None:
        kept.clear()
        gc.collect()

    fork(check)
    kept[0].send(TOPIC, b"b").result(30)
    kept[0].close()
    assert written() == [b"a", b"b"]


@state
def producer_waits_for_metadata() -> None:
    with producer() as own:
        with broker_halted():
            sending = Waiting(lambda: own.send(TOPIC, b"a"))
            fork(lambda: refuses(own))
        sending.ends()
        own.flush()
    assert written() == [b"a"]


def _deliveries_refuse(*deliveries: Any) -> None:
    for each in deliveries:
        refused(lambda: each.result())
        refused(lambda: each.result(60))
        for name in ("exception", "add_done_callback"):
            if hasattr(each, name):
                refused(lambda: getattr(each, name)(*([print] if name == "add_done_callback" else [])))


@state
def producer_batch_open() -> None:
    with producer(linger_ms=60_000) as own:
        one = own.send(TOPIC, b"a")

        def check() -> None:
            _deliveries_refuse(one)
            refuses(own)

        fork(check)
        own.flush()
        one.result(30)
    assert written() == [b"a"]


@state
def producer_batch_in_flight() -> None:
    with producer() as own:
        own.send(TOPIC, b"a").result(30)
        with broker_halted():
            one, two = own.send(TOPIC, b"b"), own.send_batch(TOPIC, [b"c"])
            eventually(lambda: own.metrics()["requests-in-flight"])

            def check() -> None:
                _deliveries_refuse(one, two)
                refuses(own)

            fork(check)
        one.result(30), two.result(30)
    assert sorted(map(str, written())) == sorted(map(str, (b"a", b"b", b"c")))


@state
def producer_buffer_full() -> None:
    with producer(buffer_memory=20_000, batch_size=4_000, linger_ms=0) as own:
        own.send(TOPIC, b"a").result(30)
        with broker_halted():

            def fill() -> None:
                for _ in range(10):
                    own.send(TOPIC, b"x" * 4_000)

            filling = Waiting(fill)
            fork(lambda: refuses(own))
        filling.ends()
    assert len(written()) == 11


@state
def producer_flush_waits() -> None:
    with producer(linger_ms=60_000) as own:
        own.send(TOPIC, b"a")
        with broker_halted():
            flushing = Waiting(own.flush)
            fork(lambda: refuses(own))
        flushing.ends()
    assert written() == [b"a"]


@state
def producer_forks_in_a_signal_handler() -> None:
    """Let the waiting call go on in the parent; it is refused in the child."""
    main = threading.main_thread().ident or 0
    children: list[int] = []

    def handle(*_: object) -> None:
        children.append(os.fork())

    signal.signal(signal.SIGUSR1, handle)
    with producer(linger_ms=60_000) as own:
        own.send(TOPIC, b"a")

        def kill_when_it_waits() -> None:
            eventually(lambda: sys._current_frames()[main].f_code.co_name == "_wait")
            signal.pthread_kill(main, signal.SIGUSR1)
            eventually(lambda: children)
            os.kill(BROKER, signal.SIGCONT)

        os.kill(BROKER, signal.SIGSTOP)
        threading.Thread(target=kill_when_it_waits).start()
        try:
            own.flush()
        except errors.IllegalState as exc:
            assert children == [0], exc
            assert "fork" in str(exc)
            sys.exit(0)
        if children == [0]:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    assert written() == [b"a"]


# ------------------------------------------------------------------------------- a transaction


def transactional() -> Producer:
    made = producer(transactional_id=TOPIC, transaction_two_phase_commit_enable=True)
    made.init_transactions()
    return made


@state
def transaction_initialising() -> None:
    with producer(transactional_id=TOPIC) as own:
        with broker_halted():
            waiting = Waiting(own.init_transactions)
            fork(lambda: refuses(own))
        waiting.ends()
        own.begin_transaction()
        own.send(TOPIC, b"a")
        own.commit_transaction()
    assert written() == [b"a"]


@state
def transaction_open() -> None:
    with transactional() as own:
        own.begin_transaction()
        own.send(TOPIC, b"a").result(30)
        fork(lambda: refuses(own))
        own.send(TOPIC, b"b")
        own.commit_transaction()
    assert written() == [b"a", b"b"]


@state
def transaction_prepared() -> None:
    with transactional() as own:
        own.begin_transaction()
        own.send(TOPIC, b"a")
        own.prepare_transaction()
        fork(lambda: refuses(own))
        own.commit_transaction()
    assert written() == [b"a"]


@state
def transaction_preparing() -> None:
    _transaction_ends(lambda own: own.prepare_transaction(), lambda own: own.commit_transaction())


@state
def transaction_committing() -> None:
    _transaction_ends(lambda own: own.commit_transaction(), lambda own: None)


@state
def transaction_aborting() -> None:
    with transactional() as own:
        own.begin_transaction()
        own.send(TOPIC, b"a").result(30)
        with broker_halted():
            waiting = Waiting(own.abort_transaction)
            fork(lambda: refuses(own))
        waiting.ends()
    assert written() == []


def _transaction_ends(call: Callable[[Producer], object], then: Callable[[Producer], object]) -> None:
    with transactional() as own:
        own.begin_transaction()
        own.send(TOPIC, b"a").result(30)
        own.send(TOPIC, b"b")
        with broker_halted():
            own.send(TOPIC, b"c")
            waiting = Waiting(lambda: call(own))
            fork(lambda: refuses(own))
        waiting.ends()
        then(own)
    assert written() == [b"a", b"b", b"c"]


# ----------------------------------------------------------------------------------- a consumer


def furnish(*values: bytes) -> None:
    with producer() as own:
        for value in values:
            own.send(TOPIC, value)


def read(own: Consumer) -> list[bytes | None]:
    seen: list[bytes | None] = []
    eventually(lambda: seen.extend(record.value for record in own.poll(0.05)) or seen)
    return seen


@state
def consumer_new() -> None:
    furnish(b"a")
    with consumer() as own:
        fork(lambda: refuses(own))
        own.subscribe([TOPIC])
        assert read(own) == [b"a"]


@state
def consumer_before_joining() -> None:
    furnish(b"a")
    with consumer() as own:
        with broker_halted():
            own.subscribe([TOPIC])
            fork(lambda: refuses(own))
        assert read(own) == [b"a"]


@state
def consumer_joining() -> None:
    """Fork before JoinGroup is answered: the other member learns of it only in `poll`."""
    furnish(b"a")
    with consumer() as first, consumer() as own:
        first.subscribe([TOPIC])
        assert read(first) == [b"a"]
        own.subscribe([TOPIC])
        waiting = Waiting(lambda: own.poll(0.5))

        def check() -> None:
            refuses(own)
            refuses(first)

        fork(check)
        waiting.ends()
        eventually(lambda: first.poll(0) == own.poll(0) and len(first.assignment) + len(own.assignment) == 1)


@state
def consumer_stable() -> None:
    furnish(b"a")
    with consumer() as own:
        own.subscribe([TOPIC])
        assert read(own) == [b"a"]
        generation = own.group_metadata()
        fork(lambda: refuses(own))
        furnish(b"b")
        assert read(own) == [b"b"]
        assert own.group_metadata() == generation


class Forking(RebalanceListener):
    """Forks while partitions are revoked."""

    def __init__(self, check: Callable[[], object]) -> None:
        self.check: Callable[[], object] | None = check
        self.checked = False

    def on_partitions_revoked(self, partitions: object) -> None:
        check, self.check = self.check, None
        if check is not None:
            check()
            self.checked = True


@state
def consumer_rebalancing() -> None:
    """Fork in the callback: the child's exception leaves `poll`, in the polling thread."""
    furnish(b"a")
    with consumer() as own, consumer() as other:
        forking = Forking(lambda: fork(lambda: refuses(own)))
        own.subscribe([TOPIC], forking)
        assert read(own) == [b"a"]
        other.subscribe([TOPIC])
        eventually(lambda: own.poll(0) == other.poll(0) and other.group_metadata().generation_id >= 0)
        eventually(lambda: own.poll(0) == other.poll(0) and len(own.assignment) + len(other.assignment) == 1)
        assert forking.checked


@state
def consumer_forks_in_a_callback_and_returns() -> None:
    """Check that `poll` is refused in the child as soon as the callback has returned."""
    furnish(b"a")
    children: list[int] = []
    with consumer() as own, consumer() as other:
        own.subscribe([TOPIC], Forking(lambda: children.append(os.fork())))
        assert read(own) == [b"a"]
        other.subscribe([TOPIC])
        try:
            eventually(lambda: (own.poll(60.0 if children == [0] else 0), other.poll(0)) and children)
        except errors.IllegalState as exc:
            assert children == [0], exc
            assert "fork" in str(exc)
            refuses(own)
            sys.exit(0)
        if children == [0]:
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        eventually(lambda: own.poll(0) == other.poll(0) and len(own.assignment) + len(other.assignment) == 1)


@state
def consumer_fetching() -> None:
    furnish(b"a")
    with consumer() as own:
        own.assign([AT])
        assert read(own) == [b"a"]
        seen: list[bytes | None] = []
        waiting = Waiting(lambda: seen.extend(record.value for record in own.poll(60.0)))
        fork(lambda: refuses(own))
        furnish(b"b")
        waiting.ends()
        assert seen == [b"b"]


@state
def consumer_committing() -> None:
    furnish(b"a")
    with consumer() as own:
        own.subscribe([TOPIC])
        assert read(own) == [b"a"]
        with broker_halted():
            waiting = Waiting(own.commit)
            fork(lambda: refuses(own))
        waiting.ends()
        committed = own.committed([AT])[AT]
        assert committed is not None
        assert committed.offset == 1


# -------------------------------------------------------------------------------------- an admin


@state
def admin_new() -> None:
    with Admin({"bootstrap.servers": SERVERS}) as own:
        fork(lambda: refuses(own))
        own.list_topics()


@state
def admin_waiting() -> None:
    with Admin({"bootstrap.servers": SERVERS}) as own:
        own.list_topics()
        with broker_halted():
            waiting = Waiting(own.list_topics)
            fork(lambda: refuses(own))
        waiting.ends()


def main() -> None:
    global TOPIC, AT
    for name, run in STATES.items():
        if name.startswith(KIND):
            TOPIC, AT = name, TopicPartition(name, 0)
            print(name, flush=True)
            run()


if __name__ == "__main__":
    main()
