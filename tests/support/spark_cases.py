"""Random queries on a fixed cluster, for Spark's own Kafka connector and ours.

Both have the same rows, or a known difference.

`tests/vectors/spark/kafka.json` has what Spark's own connector made of the first seeds. The names of the
differences are rows of the table in docs/spark.md.
"""

import base64
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tallystick import Admin, Producer, TopicPartition
from tallystick.admin.topics import NewTopic

_ROOT: Final = Path(__file__).parents[2]
RECORDED: Final = _ROOT / "tests" / "vectors" / "spark" / "kafka.json"
RECORDED_SEEDS: Final = range(24)

_BEGIN_MS: Final = 1_700_000_000_000
_FOREVER: Final = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}

# The end of each log, markers of transactions included.
ENDS: Final = {
    "orders": (10, 10, 10),
    "refunds": (12,),
    "nothing": (0, 0),
    "audit": (12,),
}

Rows = list[list[Any]]
ERROR: Final = "error"
Outcome = Rows | str


def build_cluster(bootstrap_servers: str) -> None:
    """Make the topics of `ENDS`: nulls, headers, deleted records, an aborted transaction."""
    config = {"bootstrap.servers": bootstrap_servers}
    with Admin(config) as admin:
        admin.create_topics(
            [NewTopic(name=name, partitions=len(ends), config=_FOREVER) for name, ends in ENDS.items()]
        ).all()
        with Producer(config) as producer:
            for number in range(30):
                producer.send(
                    "orders",
                    key=None if number % 4 == 0 else b"k%d" % number,
                    value=None if number % 7 == 0 else b"%d" % number,
                    partition=number % 3,
                    timestamp_ms=_BEGIN_MS + 1000 * number,
                    headers=[("n", b"%d" % number)] if number % 2 else [],
                )
            for number in range(12):
                producer.send("refunds", value=b"%d" % number, partition=0, timestamp_ms=_BEGIN_MS + number)
        with Producer({**config, "transactional.id": "audit"}) as producer:
            producer.init_transactions()
            for count, commit in ((4, True), (3, False), (2, True)):
                producer.begin_transaction()
                for number in range(count):
                    producer.send("audit", value=b"%d" % number, partition=0, timestamp_ms=_BEGIN_MS)
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
        admin.delete_records({TopicPartition("refunds", 0): 5}).all()


def draw_options(seed: int) -> dict[str, str]:
    """Return the options of a batch read; those of a seed are always the same."""
    chance = random.Random(seed)
    topics = sorted(chance.sample(sorted(ENDS), chance.choice((1, 1, 2))))
    partitions = [(topic, number) for topic in topics for number in range(len(ENDS[topic]))]
    options = {
        "kafkaConsumer.pollTimeoutMs": "5000",
        "kafka.isolation.level": chance.choice(("read_committed", "read_uncommitted")),
        "failOnDataLoss": chance.choice(("true", "false")),
    }
    match chance.randrange(4):
        case 0 | 1:
            names = [*topics, "missing"] if chance.random() < 0.15 else topics
            options["subscribe"] = ",".join(names)
        case 2:
            options["subscribePattern"] = f"({'|'.join(topics)}|no-such-.*)"
        case 3:
            partitions = sorted(chance.sample(partitions, chance.randrange(len(partitions)) + 1))
            named = [*partitions, (topics[0], 9)] if chance.random() < 0.15 else partitions
            options["assign"] = json.dumps(
                {topic: [n for t, n in named if t == topic] for topic in sorted({t for t, _ in named})}
            )
    options |= _draw_place(chance, "starting", partitions, -2) | _draw_place(chance, "ending", partitions, -1)
    options["startingOffsetsByTimestampStrategy"] = "latest"
    for name, values in (("minPartitions", "57"), ("maxRecordsPerPartition", "4")):
        if chance.random() < 0.3:
            options[name] = chance.choice(values)
    if chance.random() < 0.5:
        options["includeHeaders"] = "true"
    return options


def _draw_place(
    chance: random.Random, side: str, partitions: Sequence[tuple[str, int]], edge: int
) -> dict[str, str]:
    def offset(topic: str, number: int) -> int:
        end = ENDS[topic][number]
        if chance.random() < 0.1:
            return chance.randint(0, end + 5)
        first, last = (0, end // 2) if side == "starting" else (end // 2, end)
        return chance.choice((edge, chance.randint(first, last)))

    def time_ms() -> int:
        times_ms = (-5000, 0, 500, 5000) if side == "starting" else (500, 12_000, 99_000)
        return _BEGIN_MS + chance.choice(times_ms)

    match chance.randrange(5):
        case 0 | 1:
            return {f"{side}Offsets": _to_json({at: offset(*at) for at in partitions})}
        case 2:
            return {f"{side}Timestamp": str(time_ms())}
        case 3:
            return {f"{side}OffsetsByTimestamp": _to_json({at: time_ms() for at in partitions})}
    return {}


def _to_json(numbers: Mapping[tuple[str, int], int]) -> str:
    json_object: dict[str, dict[str, int]] = {}
    for (topic, number), value in numbers.items():
        json_object.setdefault(topic, {})[str(number)] = value
    return json.dumps(json_object)


def to_rows(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return rows in one form and order. An empty array of headers counts as none."""
    return sorted(
        [
            [
                row["topic"],
                row["partition"],
                row["offset"],
                _to_text(row["key"]),
                _to_text(row["value"]),
                row["ms"],
                row["timestampType"],
                [[each["key"], _to_text(each["value"])] for each in row.get("headers") or ()],
            ]
            for row in rows
        ]
    )


def _to_text(data: bytes | bytearray | None) -> str | None:
    return None if data is None else base64.b64encode(bytes(data)).decode()


def is_documented(options: Mapping[str, str], ours: Outcome, sparks: Outcome) -> bool:
    """Tell whether docs/spark.md has the difference between two outcomes."""
    name = _name_difference(options, ours, sparks)
    return name is not None and f"| {name} |" in (_ROOT / "docs" / "spark.md").read_text()


def _name_difference(options: Mapping[str, str], ours: Outcome, sparks: Outcome) -> str | None:
    lenient = options["failOnDataLoss"] == "false"
    if "9]" in options.get("assign", "") and ours == ERROR:
        return "`assign` of a partition that does not exist"
    if "missing" in options.get("subscribe", "") and lenient and sparks == ERROR:
        return "a missing topic with `failOnDataLoss=false`"
    if lenient and sparks == ERROR and "startingOffsets" in options:
        return "a batch that starts beyond the end of a log, with `failOnDataLoss=false`"
    return None
