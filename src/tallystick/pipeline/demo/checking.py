"""The independent checker: librdkafka reads what is committed, and nothing of ours is used to compare it."""

import json
import time
from collections.abc import Mapping
from typing import Final

import pandas as pd
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import frozen

_SILENCE_S: Final = 30.0
_PIECE: Final = 10_000


class NothingCame(TallystickError):
    """A topic was not read to its end: something open holds its readers."""


@frozen(kw_only=True)
class Verdict:
    """One topic, compared with what it must hold.

    expected    rows
    found       records
    missing     rows that are in no record
    duplicated  records beyond the first of their row
    wrong       records that are no row, or hold other values
    """

    topic: str
    expected: int
    found: int
    missing: int
    duplicated: int
    wrong: int

    @property
    def good(self) -> bool:
        return self.found == self.expected and not (self.missing or self.duplicated or self.wrong)


def check_topics(bootstrap: str, expected: Mapping[str, pd.DataFrame]) -> list[Verdict]:
    """Read every topic at read_committed. Raises: NothingCame, KafkaException."""
    return [compare(topic, rows, committed(bootstrap, topic)) for topic, rows in expected.items()]


def compare(topic: str, rows: pd.DataFrame, values: list[bytes]) -> Verdict:
    """Compare records with rows, whose first column names them."""
    name = rows.columns[0]
    # Python's own values: 3 and 3.0 are equal, and what is missing is None on both sides.
    wanted = rows.astype(object).where(rows.notna(), None)
    by_name = dict(zip(wanted[name], wanted.to_dict("records"), strict=True))
    seen = set()
    duplicated = wrong = 0
    for value in values:
        found = json.loads(value)
        if found.get(name) in seen:
            duplicated += 1
        elif by_name.get(found.get(name)) != found:
            wrong += 1
        seen.add(found.get(name))
    return Verdict(
        topic=topic,
        expected=len(by_name),
        found=len(values),
        missing=len(by_name.keys() - seen),
        duplicated=duplicated,
        wrong=wrong,
    )


def committed(bootstrap: str, topic: str) -> list[bytes]:
    """The values of all committed records."""
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
    heard = time.monotonic()
    while not _at(consumer, topic, ends):
        messages = consumer.consume(_PIECE, 0.2)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            values.append(message.value() or b"")
        heard = time.monotonic() if messages else heard
        if time.monotonic() > heard + _SILENCE_S:
            raise NothingCame(f"{topic}: {len(values)} records came, then nothing for {_SILENCE_S:g} s")
    return values


def _at(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> bool:
    places = consumer.position([TopicPartition(topic, number) for number in ends])
    return all(place.offset >= ends[place.partition] or not ends[place.partition] for place in places)
