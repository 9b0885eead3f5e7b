"""Disks that fail while the broker runs: full, then not; a sync that fails once and for all."""

import errno
import os
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


def outcome_of(servers: str, value: bytes) -> KafkaError | None:
    """What a producer that does not try again is told."""
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": servers, "retries": 0, "message.timeout.ms": 5000})
    producer.produce("t", value, on_delivery=lambda error, _: told.append(error))
    producer.flush(10)
    return told[0]


def read(servers: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[bytes] = []

    def all_read() -> bool:
        found.extend(m.value() or b"" for m in consumer.consume(1000, 0.1) if m.error() is None)
        return len(found) >= count

    eventually(all_read)
    consumer.close()
    return found


class Breakable:
    """A system call that fails while `error` is set."""

    def __init__(self, call: Callable[..., int | None]) -> None:
        self.call, self.error = call, 0

    def __call__(self, *arguments: object) -> int | None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self.call(*arguments)


def test_a_full_disk_refuses_data_serves_reads_and_recovers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writev = Breakable(os.writev)
    monkeypatch.setattr(os, "writev", writev)
    with EmbeddedBroker(in_process=True) as broker:
        assert outcome_of(broker.bootstrap_servers, b"before") is None
        writev.error = errno.ENOSPC
        error = outcome_of(broker.bootstrap_servers, b"lost")
        assert error is not None
        assert "an append was refused" in caplog.text
        assert "t-0: a write failed: [Errno 28] No space left on device" in caplog.text
        assert read(broker.bootstrap_servers, 1) == [b"before"]
        writev.error = 0
        assert outcome_of(broker.bootstrap_servers, b"after") is None
        assert read(broker.bootstrap_servers, 2) == [b"before", b"after"]


def test_a_failed_sync_is_never_acknowledged_and_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """[PRT-2]"""
    fdatasync = Breakable(os.fdatasync)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    broker = EmbeddedBroker(in_process=True, flush_policy="ack").start()
    try:
        assert outcome_of(broker.bootstrap_servers, b"before") is None
        fdatasync.error = errno.EIO
        assert outcome_of(broker.bootstrap_servers, b"lost") is not None
        eventually(lambda: not broker.running)
        assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
    finally:
        assert broker.stop() == 3
