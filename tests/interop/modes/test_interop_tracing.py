"""Traces of a dual write where the other client, and the other broker, are not ours."""

# ruff: noqa: PT012 - what a transaction raises comes at the end of its block

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.interop.conftest import Cluster
from tests.support.traces import attributes_of, context_of, linked_traces, span_of, traced

from tallystick.dualwrite import CommitUnknown, DualWriter, SqlStore, WriteInDoubt
from tallystick.dualwrite.stores.sql import SqlTransaction

pytestmark = [pytest.mark.server, pytest.mark.slow]


def lose_answer(txn: Any) -> None:
    """Let the database commit, and its answer get lost."""
    commit = txn.database.commit

    def struck() -> None:
        commit()
        raise CommitUnknown("lost")

    txn.database.commit = struck


def read_one(cluster: Cluster, topic: str) -> Any:
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(30.0)
    consumer.close()
    return message


def test_a_recovery_finds_the_trace_and_librdkafka_reads_it(cluster: Cluster, tmp_path: Path) -> None:
    topic = cluster.topic()
    engine = create_engine(f"sqlite:///{tmp_path / 'paid.db'}", poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (n INTEGER)"))
    store = SqlStore(engine)
    store.create()
    config = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": topic,
        "tallystick.modes": "resume",
    }

    def open_writer() -> DualWriter[SqlTransaction]:
        writer = DualWriter(store, config)
        writer.recover()
        return writer

    with traced() as traces:
        with open_writer() as writer, pytest.raises(WriteInDoubt), writer.transaction() as txn:
            txn.session.execute(text("INSERT INTO paid VALUES (1)"))
            txn.send(topic, b"1")
            lose_answer(txn)
        write, sent = traces.one("dual write"), traces.one(f"send {topic}")
        traces.clear()
        open_writer().close()
    finish = traces.one("finish transaction")
    assert linked_traces(finish) == {context_of(write).trace_id}
    assert attributes_of(finish)["tallystick.outcome"] == "committed"
    headers = dict(read_one(cluster, topic).headers())
    assert span_of(headers["traceparent"]) == context_of(sent).span_id
