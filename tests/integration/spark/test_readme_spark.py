"""The README's example on Spark does what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from tallystick import Producer
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server]


def example() -> str:
    text = (Path(__file__).parents[3] / "README.md").read_text()
    (block,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "readStream" in each]
    return block


def committed(bootstrap_servers: str, topic: str, count: int) -> list[bytes | None]:
    """The values of `count` records, as librdkafka reads them."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = consumer.consume(count, timeout=60)
    consumer.close()
    return [message.value() for message in found]


@pytest.mark.gate(0)
def test_the_example_writes_what_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send("orders", b"tea", key=b"1")
        program = example().replace("localhost:9092", broker.bootstrap_servers)
        for text, ours in (
            ('spark_session("upper", "spark-work")', "session"),
            ('"checkpoint"}', f'"{tmp_path / "checkpoint"}"}}'),
        ):
            assert text in program
            program = program.replace(text, ours)
        names: dict[str, Any] = {"session": spark}
        exec(program, names)
        try:
            names["query"].processAllAvailable()
        finally:
            names["query"].stop()
        assert committed(broker.bootstrap_servers, "orders.upper", 1) == [b"TEA"]
