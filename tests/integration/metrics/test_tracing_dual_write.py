"""A dual write is one trace: its shape, for threads and asyncio, alone and in batches, whole and failed."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.instrumentation.sqlalchemy import SQLAlchemyInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import StatusCode
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tests.support.dual_world import new_name
from tests.support.raw_producer import committed_values, make_topic
from tests.support.traces import (
    Traces,
    attributes_of,
    context_of,
    dedent_tree,
    linked_traces,
    traced,
)

from tallystick import Consumer, TopicPartition
from tallystick.dualwrite import (
    AsyncSqlStore,
    CommitUnknown,
    DualWriter,
    IdempotencyKey,
    SqlStore,
    WriteInDoubt,
    aio,
    consume_into,
)
from tallystick.otel import process
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

OUTCOME = "tallystick.outcome"


class Shop:
    """A table, a topic and a writer's id of the same name."""

    def __init__(self, broker: EmbeddedBroker, path: Path) -> None:
        self.name = new_name()
        make_topic(broker, self.name)
        self.url = f"sqlite:///{path / self.name}.db"
        self.config: dict[str, object] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": self.name,
        }
        self.engine: Engine = create_engine(self.url, poolclass=NullPool)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (n INTEGER UNIQUE)"))
        self.store = SqlStore(self.engine)
        self.store.create()

    def pay(self, txn: Any, n: int = 1) -> None:
        txn.session.execute(text("INSERT INTO paid VALUES (:n)"), {"n": n})
        txn.send(self.name, str(n).encode())

    def rows(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM paid")).scalar_one())

    def read(self, broker: EmbeddedBroker, count: int) -> list[Any]:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
        records: list[Any] = []
        with Consumer(settings) as consumer:
            consumer.assign([TopicPartition(self.name, 0)])
            while len(records) < count:
                records += consumer.poll(30.0)
        return records


@pytest.fixture
def shop(broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    return Shop(broker, tmp_path)


def assert_one_trace(traces: Traces) -> None:
    assert len({context_of(span).trace_id for span in traces.spans}) == 1


def test_a_dual_write_is_one_trace_from_begin_to_the_consumer(
    broker: EmbeddedBroker, shop: Shop, traces: Traces
) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        traces.clear()
        with writer.transaction() as txn:
            shop.pay(txn)
        assert traces.tree(OUTCOME, "db.system.name") == dedent_tree(
            f"""
            dual write committed
              BEGIN sqlite
              begin_transaction
              send {shop.name}
              prepare_transaction
              record
              COMMIT sqlite
              commit_transaction
            """
        )
        (record,) = shop.read(broker, 1)
        with process(record):
            pass
    assert attributes_of(traces.one("dual write"))["tallystick.transaction.id"] == shop.name
    sent, processed = traces.one(f"send {shop.name}"), traces.one(f"process {shop.name}")
    assert processed.parent is not None
    assert processed.parent.span_id == context_of(sent).span_id
    assert linked_traces(traces.one(f"poll {shop.name}")) == {context_of(sent).trace_id}
    in_the_trace = [each for each in traces.spans if not each.name.startswith("poll")]
    assert len({context_of(span).trace_id for span in in_the_trace}) == 1


def test_statements_of_sqlalchemys_instrumentation_are_below_the_steps(shop: Shop, traces: Traces) -> None:
    # The range of versions that it checks ends before the newest one.
    SQLAlchemyInstrumentor().instrument(
        skip_dep_check=True, engine=shop.engine, tracer_provider=traces.provider
    )
    try:
        with DualWriter(shop.store, shop.config) as writer:
            writer.recover()
            traces.clear()
            with writer.transaction() as txn:
                shop.pay(txn)
    finally:
        SQLAlchemyInstrumentor().uninstrument()
    tree = traces.tree().replace(f" {shop.engine.url.database}", "")
    assert "\n  INSERT\n  send " in tree
    assert "\n  record\n    UPDATE\n  COMMIT\n" in tree
    assert_one_trace(traces)


def test_the_callers_span_is_the_parent(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        traces.clear()
        with traces.tracer.start_as_current_span("request"):
            with writer.transaction() as txn, traces.tracer.start_as_current_span("work"):
                shop.pay(txn)
            with traces.tracer.start_as_current_span("answer"):
                pass
    assert traces.tree(OUTCOME) == dedent_tree(
        f"""
        request
          dual write committed
            BEGIN
            begin_transaction
            work
              send {shop.name}
            prepare_transaction
            record
            COMMIT
            commit_transaction
          answer
        """
    )


def test_asyncio_writes_the_same_tree_for_each_of_two_tasks(
    broker: EmbeddedBroker, shop: Shop, tmp_path: Path, traces: Traces
) -> None:
    other = Shop(broker, tmp_path)

    async def write(shop: Shop, held: asyncio.Barrier) -> None:
        engine = create_async_engine(shop.url.replace("sqlite:", "sqlite+aiosqlite:"), poolclass=NullPool)
        async with aio.DualWriter(AsyncSqlStore(engine), shop.config) as writer:
            await writer.recover()
            await held.wait()
            traces.clear()
            await held.wait()
            async with writer.transaction() as txn:
                await held.wait()  # both are open: neither may take the other's span for its own
                await txn.session.execute(text("INSERT INTO paid VALUES (1)"))
                await txn.send(shop.name, b"1")
        await engine.dispose()

    async def write_both() -> None:
        held = asyncio.Barrier(2)
        await asyncio.gather(write(shop, held), write(other, held))

    asyncio.run(write_both())
    roots = traces.named("dual write")
    for root in roots:
        own = [each for each in traces.spans if context_of(each).trace_id == context_of(root).trace_id]
        name = attributes_of(root)["tallystick.transaction.id"]
        assert [each.name for each in own] == [
            "dual write",
            "BEGIN",
            "begin_transaction",
            f"send {name}",
            "prepare_transaction",
            "record",
            "COMMIT",
            "commit_transaction",
        ]
    assert {attributes_of(root)["tallystick.transaction.id"] for root in roots} == {shop.name, other.name}


def test_a_block_that_raises_is_aborted_with_its_error(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        traces.clear()
        with pytest.raises(ZeroDivisionError), writer.transaction() as txn:
            shop.pay(txn)
            raise ZeroDivisionError("no")
    assert traces.tree(OUTCOME) == dedent_tree(
        f"""
        dual write aborted
          BEGIN
          begin_transaction
          send {shop.name}
          ROLLBACK
          abort_transaction
        """
    )
    root = traces.one("dual write")
    assert root.status.status_code is StatusCode.ERROR
    assert root.status.description == "ZeroDivisionError: no"
    assert attributes_of(root)["error.type"] == "ZeroDivisionError"
    assert [event.name for event in root.events] == ["exception"]


def test_a_block_that_cannot_begin_says_nothing_of_the_one_before(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        with writer.transaction() as txn:
            shop.pay(txn)
        traces.clear()
    with pytest.raises(Exception, match="closed"), writer.transaction():
        pass
    assert traces.tree(OUTCOME, "tallystick.transaction.prepared_state") == "dual write aborted"


def lose_answer(txn: Any) -> None:
    """Let the database commit, and its answer get lost."""
    commit = txn.database.commit

    def struck() -> None:
        commit()
        raise CommitUnknown("lost")

    txn.database.commit = struck


def test_a_lost_answer_is_in_doubt_and_recovery_links_to_its_trace(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        traces.clear()
        with pytest.raises(WriteInDoubt), writer.transaction() as txn:
            shop.pay(txn)
            lose_answer(txn)
        write = traces.one("dual write")
        assert attributes_of(write)[OUTCOME] == "in_doubt"
        assert traces.one("COMMIT").status.status_code is StatusCode.ERROR
        traces.clear()
        writer.recover()
    finish = traces.one("finish transaction")
    assert attributes_of(finish)[OUTCOME] == "committed"
    assert attributes_of(finish)["tallystick.recovery.finding"] == "DECIDED"
    assert linked_traces(finish) == {context_of(write).trace_id}
    assert context_of(finish).trace_id != context_of(write).trace_id


CHILD = """
import os, sys
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.support.traces import context_of, traced
from opentelemetry.trace import get_current_span
from tallystick.dualwrite import DualWriter, SqlStore

url, servers, name, step = sys.argv[1:]

def watch(number, step_now, done):
    if done and step_now.name == step:
        os._exit(9)

with traced():
    writer = DualWriter(
        SqlStore(create_engine(url, poolclass=NullPool)),
        {"bootstrap.servers": servers, "transactional.id": name},
        watch=watch,
    )
    writer.recover()
    with writer.transaction() as txn:
        print(f"{get_current_span().get_span_context().trace_id:032x}", flush=True)
        txn.session.execute(text("INSERT INTO paid VALUES (1)"))
        txn.send(name, b"1")
"""


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("last_step", "outcome", "rows"), [("commit database", "committed", 1), ("record", "aborted", 0)]
)
def test_a_recovery_in_another_process_links_to_the_trace_of_the_dead_one(
    broker: EmbeddedBroker, shop: Shop, traces: Traces, last_step: str, outcome: str, rows: int
) -> None:
    """The trace is found in the records of the open transaction: nothing else outlives the process."""
    command = [sys.executable, "-c", CHILD, shop.url, broker.bootstrap_servers, shop.name, last_step]
    child = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3]
    )
    assert child.returncode == 9, child.stderr
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
    finish = traces.one("finish transaction")
    assert attributes_of(finish)[OUTCOME] == outcome
    assert linked_traces(finish) == {int(child.stdout, 16)}
    assert shop.rows() == rows


def test_a_recovery_of_an_untraced_transaction_has_no_link(shop: Shop) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        with pytest.raises(WriteInDoubt), writer.transaction() as txn:
            shop.pay(txn)
            lose_answer(txn)
        with traced() as traces:
            writer.recover()
    assert traces.one("finish transaction").links == ()
    assert attributes_of(traces.one("finish transaction"))[OUTCOME] == "committed"


def test_a_recovery_that_finds_nothing_asks_for_no_trace(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()  # the first one notes that the id has recovered
    traces.clear()
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
    assert traces.tree(OUTCOME, "tallystick.recovery.finding") == dedent_tree(
        """
        recover
          claim
          finish transaction IDLE
            init_transactions
            check owner
            complete_transaction
        """
    )


def test_a_decided_write_commits_kafka_in_the_same_trace(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config, wait="decided") as writer:
        writer.recover()
        traces.clear()
        with writer.transaction() as txn:
            shop.pay(txn)
        writer.wait_committed()
    assert traces.tree(OUTCOME).splitlines()[0] == "dual write committed"
    assert traces.tree().splitlines()[-2:] == ["  COMMIT", "  commit_transaction"]
    assert_one_trace(traces)


@pytest.mark.parametrize("fails", [False, True])
def test_a_block_that_ends_in_another_thread_stays_one_trace(
    shop: Shop, traces: Traces, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """FastAPI runs the two ends of a blocking dependency in threads with contexts of their own."""
    shop.engine.dispose()
    engine = create_engine(shop.url, poolclass=NullPool, connect_args={"check_same_thread": False})
    with DualWriter(SqlStore(engine), shop.config) as writer:
        writer.recover()
        traces.clear()
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other, suppress(ZeroDivisionError):
            block = writer.transaction()
            txn = one.submit(block.__enter__).result()
            shop.pay(txn)
            error = ZeroDivisionError("no") if fails else None
            other.submit(block.__exit__, type(error) if error else None, error, None).result()
    ends = ["ROLLBACK", "abort_transaction"] if fails else ["COMMIT", "commit_transaction"]
    root = context_of(traces.one("dual write"))
    assert {context_of(traces.one(end)).trace_id for end in ends} == {root.trace_id}
    assert caplog.records == []


def test_work_that_was_done_before_is_no_error(shop: Shop, traces: Traces) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        writer.run(shop.pay, idempotency_key=IdempotencyKey("shop", "order-7"))
        traces.clear()
        writer.run(shop.pay, idempotency_key=IdempotencyKey("shop", "order-7"))
    write = traces.one("dual write")
    assert attributes_of(write)[OUTCOME] == "aborted"
    assert write.status.status_code is StatusCode.UNSET
    assert "\n  claim key\n" in traces.tree()


# ---------------------------------------------------------------------------- consumption


def test_records_consumed_into_a_database_are_processed_in_the_trace_that_sent_them(
    broker: EmbeddedBroker, shop: Shop, traces: Traces
) -> None:
    with DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        traces.clear()
        with writer.transaction() as txn:
            shop.pay(txn)
    eventually(lambda: len(committed_values(broker, shop.name, 0)) == 1)
    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": shop.name,
        "auto.offset.reset": "earliest",
    }
    with Consumer(settings) as consumer:
        reading = consume_into(shop.store, consumer, partitions=[TopicPartition(shop.name, 0)])
        read = 0
        while not read:
            with reading.batch(timeout_s=30.0) as batch:
                read = len(batch.records)
    processed = traces.one(f"process {shop.name}")
    assert context_of(processed).trace_id == context_of(traces.one("dual write")).trace_id
    below = [
        each.name
        for each in traces.spans
        if each.parent and each.parent.span_id == context_of(processed).span_id
    ]
    assert below == ["BEGIN", "move offsets", "COMMIT"]
    assert attributes_of(processed)[OUTCOME] == "committed"


# ---------------------------------------------------------------------------- failures of tracing


class Broken(SpanProcessor):
    """An exporter with a bug."""

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("the exporter is broken")


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_broken_exporter_breaks_no_write(
    broker: EmbeddedBroker, shop: Shop, caplog: pytest.LogCaptureFixture, is_broken: bool
) -> None:
    """[OTEL-1]"""
    with traced(*[Broken()] * is_broken), DualWriter(shop.store, shop.config) as writer:
        writer.recover()
        with writer.transaction() as txn:
            shop.pay(txn)
    assert shop.rows() == 1
    eventually(lambda: committed_values(broker, shop.name, 0) == ["1"])
    logged = [record for record in caplog.records if record.name == "tallystick.otel"]
    assert len(logged) == is_broken, "once, and not for every span"
