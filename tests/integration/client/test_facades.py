"""Producer and Consumer as a program uses them: threads, forks, Ctrl-C, closing, brokers that go away."""

import asyncio
import inspect
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

import tallystick
from tallystick import (
    Completion,
    Consumer,
    OffsetAndMetadata,
    PreparedTxnState,
    Producer,
    RebalanceListener,
    RecordMetadata,
    TopicPartition,
    errors,
)
from tallystick.client.blocking.consumer_runner import ConsumerRunner
from tallystick.client.blocking.producer_runner import ProducerRunner
from tallystick.client.blocking.thread import engine_thread
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.broker(in_process=False, num_partitions=1)]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return re.sub(r"\W", "-", str(request.node.name))


def plain(broker: EmbeddedBroker, **settings: object) -> dict[str, object]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": broker.bootstrap_servers, **named}


def two_phase(broker: EmbeddedBroker, transactional_id: str, **settings: object) -> dict[str, object]:
    return plain(
        broker, transactional_id=transactional_id, transaction_two_phase_commit_enable=True, **settings
    )


def values(broker: EmbeddedBroker, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """All there is in partition 0."""
    at = TopicPartition(topic, 0)
    with Consumer(plain(broker, isolation_level=isolation, enable_auto_commit=False)) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([at])[at]
        read: list[bytes | None] = []
        while consumer.position(at) < end:
            read += [record.value for record in consumer.poll(1.0)]
        return read


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C, soon; also where the tests run in the background, which ignores it."""
    main = threading.main_thread().ident
    assert main is not None
    interrupt = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt.start()
    try:
        yield
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, before)


# ------------------------------------------------------------------------------------ records


def test_a_record_and_its_way(broker: EmbeddedBroker, topic: str) -> None:
    told: list[object] = []
    with Producer(plain(broker)) as producer:
        sent = producer.send(
            topic,
            b"one",
            b"42",
            timestamp_ms=1_700_000_000_000,
            headers=(("who", content) for content in (b"me", None)),  # the topic is new: it is tried twice
            on_delivery=lambda delivery: told.append(delivery.result(0)),
        )
        where = sent.result(10)
        assert where == RecordMetadata(topic, 0, where.offset, where.timestamp_ms)
        assert (where.offset, where.timestamp_ms) == (0, 1_700_000_000_000)
        eventually(lambda: told == [where])
        assert producer.metrics()["record-send-total"] == 1
    with Consumer(plain(broker)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        (record,) = consumer.poll(10)
    assert (record.key, record.value, record.timestamp_ms) == (b"42", b"one", 1_700_000_000_000)
    assert list(record.headers) == [("who", b"me"), ("who", None)]


def test_no_headers_are_none_before_and_after_the_topic_is_known(broker: EmbeddedBroker, topic: str) -> None:
    """Neither depends on whether the record has to wait."""
    none: Any = None  # what confluent-kafka takes
    with Producer(plain(broker)) as producer:
        assert [producer.send(topic, b"v", headers=none).result(10).offset for _ in range(2)] == [0, 1]


def test_a_second_loop_is_refused_and_not_waited_for() -> None:
    """[CLI-2] `asyncio.run` twice with one client: nobody is left to send the record."""
    made: list[tallystick.aio.Producer] = []

    async def first() -> None:
        made.append(tallystick.aio.Producer({"bootstrap.servers": "127.0.0.1:1"}))
        made[0]._accumulator.update_topic("t", 1, [0])

    async def second() -> None:
        for _ in range(2):
            with pytest.raises(errors.Closed, match="loop"):
                await made[0].send("t", b"two")

    asyncio.run(first())
    asyncio.run(second())


def test_a_client_that_was_never_made_is_collected_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    """What `copy` and `pickle` make first has no attributes."""
    ProducerRunner.__new__(ProducerRunner).__del__()
    ConsumerRunner.__new__(ConsumerRunner).__del__()
    assert not recwarn.list


def test_many_records_in_one_call(broker: EmbeddedBroker, topic: str) -> None:
    class Column:
        """What turns itself into a list."""

        def __len__(self) -> int:
            return 2

        def to_pylist(self) -> list[bytes | None]:
            return [b"c", None]

    with Producer(plain(broker)) as producer:
        done = producer.send_batch(topic, [b"a", b"b"], headers=[("h", b"1")]).result(10)
        assert (done.count, [part.first_offset for part in done.parts]) == (2, [0])
        producer.send_batch(topic, Column(), [b"1", b"2"]).result(10)
        with pytest.raises(ValueError, match="2 values and 1 keys"):
            producer.send_batch(topic, [b"a", b"b"], [b"1"])
        with pytest.raises(ValueError, match="no records"):
            producer.send_batch(topic, [])
        with pytest.raises(TypeError, match="encode them first"):
            producer.send_batch(topic, ["text"])  # type: ignore[list-item]
    assert values(broker, topic) == [b"a", b"b", b"c", None]


def test_threads_share_a_producer(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-24] Nothing is lost, and each thread's records are in its order."""
    threads, each = 6, 2000

    def send(who: int) -> None:
        for n in range(each):
            producer.send(topic, b"%d %d" % (who, n))

    with Producer(plain(broker, linger_ms=1)) as producer:
        senders = [threading.Thread(target=send, args=(who,)) for who in range(threads)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        producer.flush()
    by_sender: dict[int, list[int]] = {who: [] for who in range(threads)}
    for value in values(broker, topic):
        who, n = map(int, (value or b"").split())
        by_sender[who].append(n)
    assert by_sender == {who: list(range(each)) for who in range(threads)}


WAITS: dict[str, Callable[[tallystick.Producer, str], object]] = {
    "flush": lambda producer, topic: [producer.send(topic, b"two"), producer.flush()],
    "result": lambda producer, topic: producer.send(topic, b"two").result(),
    "exception": lambda producer, topic: producer.send(topic, b"two").exception(30),
    "result-of-a-batch": lambda producer, topic: producer.send_batch(topic, [b"two"]).result(),
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_callback_may_send_and_may_not_wait(broker: EmbeddedBroker, topic: str, wait: str) -> None:
    """[CLI-60]"""
    said: list[object] = []

    def sends_another(delivery: tallystick.Delivery) -> None:
        try:
            WAITS[wait](producer, topic)
        except errors.IllegalState as exc:
            said.append(exc)

    with Producer(plain(broker)) as producer:
        producer.send(topic, b"one", on_delivery=sends_another).result(10)
        eventually(lambda: said)
    assert "called from a callback" in str(said[0])
    assert ("it may have happened" in str(said[0])) == (wait != "flush")
    assert values(broker, topic) == [b"one", b"two"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_callback_that_exits_leaves_the_engine_thread_to_the_other_clients(
    broker: EmbeddedBroker, topic: str, kind: type[BaseException]
) -> None:
    """[CLI-60] It is shared by all, and a thread's `sys.exit()` ends no program."""

    def leave(_: object) -> None:
        raise kind

    with Producer(plain(broker)) as producer, Consumer({**plain(broker), "group.id": topic}) as consumer:
        delivery = producer.send(topic, b"one", on_delivery=leave)
        assert delivery.result(10).offset == 0
        consumer.assign([TopicPartition(topic, 0)])
        consumer.commit_soon({TopicPartition(topic, 0): 1}, leave)
        consumer.commit({TopicPartition(topic, 0): 2})
        assert producer.send(topic, b"two").result(10).offset == 1


def test_a_process_forks_with_an_open_producer(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-61] The child's own producer works, its parent's refuses; the parent's goes on."""
    program = """
        import os, sys
        from tallystick import Consumer, Producer, errors
        servers, topic = sys.argv[1:]
        config = {"bootstrap.servers": servers}

        def refused(call):
            try:
                call()
            except errors.IllegalState as exc:
                assert "opened before the fork" in str(exc), exc
                return True

        def in_child():
            assert refused(lambda: producer.send(topic, b"twice?"))
            assert refused(lambda: producer.send_batch(topic, [b"twice?"]))
            assert refused(producer.flush)
            assert refused(txn.begin_transaction)
            assert refused(lambda: consumer.poll(0))
            producer.close(), txn.close(), consumer.close()  # harmless: they are the parent's to close
            with Producer(config) as own:
                own.send(topic, b"child").result(10)

        with (
            Producer({**config, "linger.ms": 200}) as producer,
            Producer({**config, "transactional.id": topic}) as txn,
            Consumer({**config, "group.id": topic}) as consumer,
        ):
            txn.init_transactions()
            consumer.subscribe([topic])
            producer.send(topic, b"before").result(10)
            waiting = producer.send(topic, b"while it waits for more")
            child = os.fork()
            if child == 0:
                in_child()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            waiting.result(10)
            producer.send(topic, b"after").result(10)
    """
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning"),
            *("-c", textwrap.dedent(program), broker.bootstrap_servers, topic),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = values(broker, topic)
    assert sorted(str(value) for value in written) == sorted(
        str(value) for value in (b"before", b"while it waits for more", b"child", b"after")
    )


def test_an_interrupted_flush_ends_and_the_records_go_on(broker: EmbeddedBroker, topic: str) -> None:
    """KeyboardInterrupt while the broker is away: at once, and nothing is lost."""
    with EmbeddedBroker() as other, Producer(plain(other)) as producer:
        producer.send(topic, b"one").result(10)
        other.kill()
        waiting = producer.send(topic, b"two")
        with interrupted(), pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert not waiting.done()
        other.restart()
        assert waiting.result(60).offset == 1


def test_what_is_interrupted_before_it_began_is_ended_as_well() -> None:
    """Ctrl-C while the loop is busy: the coroutine is neither left unawaited nor waited for."""

    async def work() -> None:
        pass

    engine, free, coroutine = engine_thread(), threading.Event(), work()
    engine.call_soon(free.wait)
    later = threading.Timer(0.5, free.set)
    later.start()
    with interrupted(), pytest.raises(KeyboardInterrupt):
        engine.run(coroutine, 10.0, "work")
    later.join()
    eventually(lambda: inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED, 5.0)


def test_an_interrupted_commit_is_asked_again(topic: str) -> None:
    """[CLI-46] Ctrl-C while a decision is on its way: the same call finds out, and nothing else is legal."""
    with EmbeddedBroker() as other, Producer(two_phase(other, topic)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"one")
        producer.prepare_transaction()
        other.kill()
        with interrupted(), pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
        other.restart()
        with pytest.raises(errors.IllegalState):
            producer.abort_transaction()
        producer.commit_transaction()
        assert values(other, topic) == [b"one"]


# ------------------------------------------------------------------------------- away, and gone


def test_a_broker_that_was_never_there() -> None:
    """[CLI-2] Every call ends, and its error names the limit."""
    nobody = {"bootstrap.servers": "127.0.0.1:9"}
    with (
        Producer({**nobody, "max.block.ms": 200, "transactional.id": "t"}) as producer,
        pytest.raises(errors.TimedOut, match=r"max\.block\.ms = 200"),
    ):
        producer.init_transactions()
    with Producer({**nobody, "max.block.ms": 200}) as producer:
        with pytest.raises(errors.TimedOut, match=r"max\.block\.ms = 200"):
            producer.send("t", b"x")
        producer.flush()
    with Consumer({**nobody, "default.api.timeout.ms": 200, "group.id": "g"}) as consumer:
        with pytest.raises(errors.TimedOut, match=r"default\.api\.timeout\.ms = 200"):
            consumer.committed([TopicPartition("t", 0)])
        consumer.subscribe(["t"])
        assert consumer.poll(0.2) == []


def test_a_broker_that_goes_away(topic: str) -> None:
    """[CLI-2] [CLI-63] Limits that were given hold, and what is not delivered says so."""
    with EmbeddedBroker() as other:
        producer = Producer(plain(other))
        producer.send(topic, b"one").result(10)
        other.kill()
        lost = producer.send(topic, b"two")
        with pytest.raises(errors.TimedOut, match="timeout_s = 100 ms"):
            producer.flush(timeout_s=0.1)
        producer.close(timeout_s=0.2)
        # A close that ignored its limit would end with delivery.timeout.ms, and this with TimedOut.
        with pytest.raises(errors.Closed):
            lost.result(0)
        with pytest.raises(errors.Closed):
            producer.send(topic, b"three")


def test_an_unclosed_producer_warns(broker: EmbeddedBroker, topic: str) -> None:
    producer = Producer(plain(broker))
    producer.send(topic, b"one").result(10)
    with pytest.warns(ResourceWarning, match="unclosed <Producer"):
        del producer


def test_every_problem_of_a_configuration_at_once() -> None:
    with pytest.raises(errors.BadConfig) as bad:
        Producer({"bootstrap.server": "x:1", "acks": 7, "security.protocol": "TLS"})
    for name in ("bootstrap.server", "acks", "security.protocol"):
        assert name in str(bad.value)


# -------------------------------------------------------------------------------- transactions


def test_transactional_calls_need_an_id(broker: EmbeddedBroker) -> None:
    with (
        Producer(plain(broker)) as producer,
        pytest.raises(errors.IllegalState, match=r"begin_transaction: transactional\.id is not set"),
    ):
        producer.begin_transaction()


def test_prepare_and_complete_by_another(broker: EmbeddedBroker, topic: str) -> None:
    """KIP-939, "Recovery recipe"."""
    config = two_phase(broker, topic)
    with Producer(config) as producer:
        producer.init_transactions()
        assert producer.mode is not None
        assert (producer.mode.value, producer.mode.not_promised) == ("2pc", "")
        producer.begin_transaction()
        producer.send(topic, b"one")
        stored = str(producer.prepare_transaction())
        with pytest.raises(errors.IllegalState):
            producer.send(topic, b"no more")
    assert values(broker, topic) == []
    with Producer(config) as producer:
        producer.init_transactions(keep_prepared_txn=True)
        assert producer.complete_transaction(PreparedTxnState(stored)) is Completion.COMMITTED
        producer.begin_transaction()
        producer.send(topic, b"two")
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"three")
        producer.commit_transaction()
    assert values(broker, topic) == [b"one", b"three"]


def test_offsets_in_a_transaction(broker: EmbeddedBroker, topic: str) -> None:
    """KIP-447: what was read and what was written are committed together."""
    source = TopicPartition(f"{topic}-in", 0)
    with (
        Producer(plain(broker)) as feed,
        Producer(plain(broker, transactional_id=topic)) as producer,
        Consumer(
            plain(broker, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)
        ) as consumer,
    ):
        feed.send(source.topic, b"one").result(10)
        producer.init_transactions()
        consumer.subscribe([source.topic])
        record = next(iter(consumer))
        producer.begin_transaction()
        producer.send(topic, (record.value or b"").upper())
        offsets = {source: record.offset + 1}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()
        assert consumer.committed([source]) == {source: OffsetAndMetadata(1)}
    assert values(broker, topic) == [b"ONE"]


class Stage:
    """How far a transactional producer gets before it is closed, and what a reader sees afterwards."""

    CALLS = ("init_transactions", "begin_transaction", "send", "flush", "prepare_transaction", "commit")


@pytest.mark.parametrize("reached", range(len(Stage.CALLS) + 1))
def test_close_in_every_state(broker: EmbeddedBroker, topic: str, reached: int) -> None:
    """[CLI-62] What nobody has decided on is aborted; what is prepared stays in doubt."""
    producer = Producer(two_phase(broker, topic))
    state = ""
    for call in Stage.CALLS[:reached]:
        match call:
            case "send":
                producer.send(topic, b"one")
            case "prepare_transaction":
                state = str(producer.prepare_transaction())
            case "commit":
                producer.commit_transaction()
            case _:
                getattr(producer, call)()
    producer.close()
    producer.close()
    with pytest.raises((errors.Closed, errors.IllegalState)):
        producer.send(topic, b"two")
    with pytest.raises(errors.Closed):
        producer.begin_transaction()

    prepared = reached == Stage.CALLS.index("prepare_transaction") + 1
    with Producer(two_phase(broker, topic)) as next_one:
        next_one.init_transactions(keep_prepared_txn=True)
        done = next_one.complete_transaction(PreparedTxnState(state))
    assert (done is Completion.COMMITTED) == prepared
    if reached > Stage.CALLS.index("send"):
        assert values(broker, topic) == ([b"one"] if state else [])


def test_a_transaction_that_failed_can_be_closed(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(plain(broker, transactional_id=topic, max_request_size=200_000)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"one").result(10)
        with pytest.raises(errors.TooLarge):
            producer.send(topic, bytes(300_000))
        producer.send(topic, b"two")
    assert values(broker, topic) == []


# ----------------------------------------------------------------------------------- consuming


class Notes(RebalanceListener):
    """Notes which callback ran in which thread, and commits what it gives back."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.heard: list[tuple[str, int]] = []

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.heard.append(("assigned", threading.get_ident()))

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.consumer.commit()
        self.heard.append(("revoked", threading.get_ident()))


def test_callbacks_run_in_the_thread_that_polls(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-32] And may call the consumer."""
    at = TopicPartition(topic, 0)
    with Producer(plain(broker)) as producer:
        producer.send(topic, b"one").result(10)
    group = plain(broker, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)
    with Consumer(group) as consumer:
        notes = Notes(consumer)
        consumer.subscribe([topic], notes)
        assert next(iter(consumer)).value == b"one"
        assert (consumer.assignment, consumer.subscription) == ({at}, {topic})
        consumer.unsubscribe()
        consumer.assign([at])
        assert consumer.committed([at]) == {at: OffsetAndMetadata(1, 0)}
    assert notes.heard == [("assigned", threading.get_ident()), ("revoked", threading.get_ident())]


def test_a_poll_as_an_arrow_batch(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(plain(broker)) as producer:
        producer.send_batch(topic, [b"one", b"two"]).result(10)
    with Consumer(plain(broker)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        if find_spec("pyarrow") is None:
            with pytest.raises(errors.NotSupported, match=r"the extra `arrow`"):
                consumer.poll_arrow(10)
        else:
            assert consumer.poll_arrow(10).to_pydict()["value"] == [b"one", b"two"]


def test_a_consumer_is_for_one_thread_and_can_be_woken(broker: EmbeddedBroker, topic: str) -> None:
    """[CLI-64]"""
    ended: list[Exception] = []

    def poll() -> None:
        try:
            consumer.poll(60)
        except errors.WokenUp as exc:
            ended.append(exc)

    with Consumer(plain(broker)) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        other = threading.Thread(target=poll)
        other.start()

        def refused() -> bool:
            try:
                consumer.poll(0)
            except errors.IllegalState as exc:
                return "another thread" in str(exc)
            return False

        eventually(refused)
        with pytest.raises(errors.IllegalState, match="another thread"):
            consumer.close()
        consumer.wakeup()
        other.join(10)
        assert ended
        consumer.assign([])  # the close that was refused has closed nothing, and is asked for again
    with pytest.raises(errors.Closed):
        consumer.assign([])


# ------------------------------------------------------------------------------------- asyncio


def test_the_same_names_under_asyncio(broker: EmbeddedBroker, topic: str) -> None:
    at = TopicPartition(topic, 0)

    async def run() -> list[bytes | None]:
        async with tallystick.aio.Producer(two_phase(broker, topic)) as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            delivery = await producer.send(topic, b"one")
            assert (await delivery).offset == 0
            await (await producer.send_batch(topic, [b"two", b"three"]))
            state = await producer.prepare_transaction()
            assert await producer.complete_transaction(state) is Completion.COMMITTED
            await producer.begin_transaction()
            await producer.send(topic, b"never")
        read: list[bytes | None] = []
        async with tallystick.aio.Consumer(
            plain(broker, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed")
        ) as consumer:
            consumer.subscribe([topic])
            async for record in consumer:
                read.append(record.value)
                if len(read) == 3:
                    break
            await consumer.commit()
            assert (await consumer.committed([at]))[at] is not None
            answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
            consumer.commit_soon({at: 1}, on_done=answer.set_result)
            assert await answer is None
            assert (await consumer.committed([at]))[at] == OffsetAndMetadata(1)
        return read

    assert asyncio.run(run()) == [b"one", b"two", b"three"]


def test_both_facades_have_the_same_names() -> None:
    for blocking, aio in (
        (tallystick.Producer, tallystick.aio.Producer),
        (tallystick.Consumer, tallystick.aio.Consumer),
    ):
        assert {name for name in dir(blocking) if not name.startswith("_")} == {
            name for name in dir(aio) if not name.startswith("_")
        }
