"""kafka-dump-log reads our files, and finds nothing wrong with them."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = pytest.mark.gate(0)

RECORDS = 3000
GROUP_PARTITIONS = 50


@pytest.fixture
def written(cluster: Any) -> Iterator[tuple[Any, str, str]]:
    """A topic of several segments, a group with offsets, and a broker that is stopped meanwhile."""
    topic = cluster.topic(segment_bytes="1048576", index_interval_bytes="1024")
    group, noise = cluster.fresh_name("dumped-group"), random.Random(0)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
        }
        producer = Producer({**config, "batch.num.messages": 20})
        for i in range(RECORDS // 5):
            value = f"{codec}-{i}-{noise.randbytes(1000).hex()}"
            producer.produce(topic, value, f"key-{i}", headers=[("codec", codec)], partition=0)
        assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1234, metadata="noted")], asynchronous=False)
    consumer.close()
    cluster.stop()
    yield cluster, topic, group
    cluster.start()


def dump(java: Any, *files: Path, options: tuple[str, ...] = ()) -> str:
    return str(java.tool("kafka-dump-log", "--files", ",".join(map(str, files)), *options))


def test_every_file_of_a_partition(written: tuple[Any, str, str], java: Any) -> None:
    cluster, topic, _ = written
    directory = cluster.partition_directory(topic, 0)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) >= 2, "the topic rolled"

    printed = "".join(dump(java, log, options=("--deep-iteration", "--print-data-log")) for log in logs)
    offsets = [int(o) for o in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == list(range(RECORDS))
    assert "isvalid: false" not in printed
    assert set(re.findall(r"compresscodec: (\w+)", printed)) == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert "headerKeys: [codec]" in printed
    assert "partitionLeaderEpoch: " in printed
    assert "key: key-7 payload: none-7-" in printed

    for log in logs:
        assert "Found timestamp mismatch" not in dump(java, log)
        for suffix in (".index", ".timeindex"):
            file = log.with_suffix(suffix)
            printed = dump(java, file)
            assert re.search(r"offset: \d+", printed), (file, printed)
            for wrong in ("Mismatches in", "Non-consecutive", "out of order", "Found timestamp mismatch"):
                assert wrong not in printed, (file, printed)
            assert "passed sanity check" in dump(java, file, options=("--index-sanity-check",))


def test_the_producer_snapshot(written: tuple[Any, str, str], java: Any) -> None:
    cluster, topic, _ = written
    newest = max(cluster.partition_directory(topic, 0).glob("*.snapshot"))
    assert int(newest.stem) == RECORDS
    printed = dump(java, newest)
    assert len(re.findall(r"producerId: \d+ producerEpoch: 0", printed)) == 5
    assert f"lastSequence: {RECORDS // 5 - 1}" in printed


def test_the_offsets_topic(written: tuple[Any, str, str], java: Any) -> None:
    cluster, topic, group = written
    logs = [
        log
        for p in range(GROUP_PARTITIONS)
        for log in cluster.directory.rglob(f"__consumer_offsets-{p}/*.log")
        if log.stat().st_size
    ]
    printed = dump(java, *logs, options=("--offsets-decoder",))
    line = next(
        line for line in printed.splitlines() if f'"group":"{group}"' in line and '"offset":1234' in line
    )
    assert f'"topic":"{topic}"' in line
    assert '"metadata":"noted' in line


def test_the_transaction_index_of_a_log_without_transactions(
    written: tuple[Any, str, str], java: Any
) -> None:
    cluster, topic, _ = written
    for index in cluster.partition_directory(topic, 0).glob("*.txnindex"):
        assert index.stat().st_size == 0
