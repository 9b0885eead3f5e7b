"""Independent checker of the demo: reads with librdkafka, psycopg and delta-rs, not with tallystick."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
import psycopg
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition
from deltalake import DeltaTable
from psycopg.rows import dict_row

from tallystick.demo import ContentCheck
from tallystick.kernel.errors import TallystickError

_READ_TIMEOUT_S: Final = 30.0
_CONSUME_MAX: Final = 10_000


class ReadTimedOut(TallystickError):
    """A topic could not be read to its end, because an open transaction holds back its readers."""


def check_topics(bootstrap: str, expected: Mapping[str, pd.DataFrame]) -> list[ContentCheck]:
    """Read and compare every topic at read_committed. Raises: ReadTimedOut, KafkaException."""
    return [
        compare_content(
            f"topic {topic}", rows, [json.loads(value) for value in read_committed_values(bootstrap, topic)]
        )
        for topic, rows in expected.items()
    ]


def check_table(url: str, table: str, expected: pd.DataFrame) -> ContentCheck:
    """Read and compare the table. Raises: psycopg.Error."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
    return compare_content(f"PostgreSQL table {table}", expected, rows)


def check_lake_table(folder: Path, expected: pd.DataFrame) -> ContentCheck:
    """Read and compare the newest version of the Delta table. Raises: deltalake.exceptions.DeltaError."""
    rows: Any = pa.table(DeltaTable(folder).scan().read_all())
    return compare_content(f"Delta table {folder.name}", expected, rows.to_pylist())


def compare_content(where: str, rows: pd.DataFrame, actual: Sequence[Mapping[str, object]]) -> ContentCheck:
    """Compare `actual` with the expected `rows`, identified by their first column."""
    name = rows.columns[0]
    # Convert to Python values: 3 and 3.0 are equal, and missing values are None on both sides.
    columns = [rows[each].astype(object).where(rows[each].notna(), None).tolist() for each in rows.columns]
    records = (dict(zip(rows.columns, values, strict=True)) for values in zip(*columns, strict=True))
    by_name = dict(zip(columns[0], records, strict=True))
    names = set()
    duplicated = wrong = 0
    for each in actual:
        if each.get(name) in names:
            duplicated += 1
        elif by_name.get(each.get(name)) != each:
            wrong += 1
        names.add(each.get(name))
    return ContentCheck(
        target=where,
        expected=len(by_name),
        actual=len(actual),
        missing=len(by_name.keys() - names),
        duplicated=duplicated,
        wrong=wrong,
    )


def read_committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """Read the values of all committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ends = {
            # At read_committed this is the last stable offset; the high watermark is what must be reached.
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1]
            for number in partitions
        }
        return _read_to(consumer, topic, ends)
    finally:
        consumer.close()


def _read_to(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> list[bytes]:
    values: list[bytes] = []
    last_record_at = time.monotonic()
    while not _is_at_end(consumer, topic, ends):
        messages = consumer.consume(_CONSUME_MAX, 0.2)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            values.append(message.value() or b"")
        last_record_at = time.monotonic() if messages else last_record_at
        if time.monotonic() > last_record_at + _READ_TIMEOUT_S:
            raise ReadTimedOut(f"{topic}: {len(values)} records came, then nothing for {_READ_TIMEOUT_S:g} s")
    return values


def _is_at_end(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> bool:
    places = consumer.position([TopicPartition(topic, number) for number in ends])
    return all(place.offset >= ends[place.partition] or not ends[place.partition] for place in places)
