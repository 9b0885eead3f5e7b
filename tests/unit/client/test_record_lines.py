"""Records as lines: Kafka's properties, their mistakes, and JSON that loses nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.blocking.record_lines import (
    BadLine,
    JsonLineFormat,
    LineReader,
    LineWriter,
    ProducerRecord,
)
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.records import TimestampType

HEADERS = {"parse.headers": "true"}
BOTH = {"parse.key": "true", **HEADERS}


def record(**given: object) -> ConsumerRecord:
    whole: dict[str, object] = {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp_ms": 9,
        "timestamp_type": TimestampType.CREATE_TIME,
        "key": b"k",
        "value": b"v",
        "headers": (),
        "leader_epoch": None,
    }
    return ConsumerRecord(**{**whole, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "line", "expected"),
    [
        ({}, b"a\tb", ProducerRecord(value=b"a\tb")),
        ({}, b"", ProducerRecord(value=b"")),
        ({"parse.key": "true"}, b"a\tb\tc", ProducerRecord(key=b"a", value=b"b\tc")),
        ({"parse.key": "TRUE", "key.separator": " "}, b"a b", ProducerRecord(key=b"a", value=b"b")),
        (BOTH, b"x:1,y:\tk\tv", ProducerRecord(headers=(("x", b"1"), ("y", b"")), key=b"k", value=b"v")),
        ({"null.marker": "~"}, b"~", ProducerRecord(value=None)),
        ({**BOTH, "null.marker": "~"}, b"~\t~\tv", ProducerRecord(value=b"v")),
        ({**BOTH, "null.marker": "~"}, b"x:~\tk\tv", ProducerRecord(headers=(("x", None),), key=b"k",
        value=b"v")), ({"parse.key": "true", "ignore.error": "true"}, b"v", ProducerRecord(value=b"v")),
        ({**HEADERS, "ignore.error": "true"}, b"x\tv", ProducerRecord(headers=(("x", None),), value=b"v")),
        (
            {**HEADERS, "headers.delimiter": "|", "headers.separator": ";", "headers.key.separator": "="},
            b"x=1;y=2|v",
            ProducerRecord(headers=(("x", b"1"), ("y", b"2")), value=b"v"),
        ),
    ],
)  # fmt: skip
def test_a_line_is_split_as_kafkas_tool_splits_it(
    properties: dict[str, str], line: bytes, expected: ProducerRecord
) -> None:
    """Source: Kafka 4.3 LineMessageReader.readRecord."""
    assert LineReader.parse(properties).read(line) == expected


@pytest.mark.parametrize(
    ("properties", "line", "why"),
    [
        ({"parse.key": "true"}, b"v", "no key separator"),
        ({"parse.headers": "true"}, b"v", "no headers delimiter"),
        ({"parse.headers": "true"}, b"x\tv", "in the header b'x'"),
        ({"parse.headers": "true"}, b"\xff:1\tv", "not UTF-8"),
        ({"parse.headers": "true", "null.marker": "~"}, b"~:1\tv", "null marker"),
    ],
)
def test_a_line_without_its_separators_is_no_record(
    properties: dict[str, str], line: bytes, why: str
) -> None:
    with pytest.raises(BadLine, match=why):
        LineReader.parse(properties).read(line)


def test_every_mistake_in_the_properties_is_told_at_once() -> None:
    with pytest.raises(BadConfig) as told:
        LineReader.parse({"parse.keys": "true", "parse.headers": "yes"})
    assert "did you mean parse.key?" in str(told.value)
    assert "parse.headers: 'yes' is not true or false" in str(told.value)
    with pytest.raises(BadConfig) as told:
        LineReader.parse({"key.separator": "", "headers.separator": ":", "null.marker": ":"})
    assert len(str(told.value).splitlines()) == 3


def test_a_record_is_printed_in_kafkas_order() -> None:
    """Source: Kafka 4.3 DefaultMessageFormatter.writeTo."""
    everything = {f"print.{name}": "true" for name in ("key", "timestamp", "partition", "offset", "headers")}
    shown = LineWriter.parse(everything).format(record(headers=(("x", b"1"), ("y", None))))
    assert shown == b"CreateTime:9\tPartition:3\tOffset:7\tx:1,y:null\tk\tv\n"
    assert LineWriter.parse({}).format(record(value=None)) == b"null\n"
    own = {"print.value": "false", "print.headers": "true", "print.epoch": "true", "key.separator": " "}
    assert (
        LineWriter.parse({**own, "line.separator": ";"}).format(record(leader_epoch=4))
        == b"Epoch:4 NO_HEADERS;"
    )
    marks = {"print.key": "true", "null.literal": "-", "print.headers": "true", "headers.separator": "|"}
    assert (
        LineWriter.parse(marks).format(record(key=None, headers=(("a", b""), ("b", b"")))) == b"a:|b:\t-\tv\n"
    )
    late = record(timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert LineWriter.parse({"print.timestamp": "true"}).format(late) == b"LogAppendTime:9\tv\n"


contents = st.none() | st.binary() | st.text().map(str.encode)


@given(contents, contents, st.lists(st.tuples(st.text(), contents)))
def test_json_reads_what_it_has_printed(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    shown = JsonLineFormat().format(record(key=key, value=value, headers=tuple(headers)))
    assert shown.count(b"\n") == 1
    assert JsonLineFormat().read(shown) == ProducerRecord(
        key=key, value=value, headers=tuple(headers), partition=3, timestamp_ms=9
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"valeu": "v"}', "no record has valeu"),
        (b'{"partition": 1}', "neither key nor value"),
        (b'{"value": 1}', "value: is not a text"),
        (b'{"value": {"base64": "?"}}', "value: base64"),
        (b'{"value": {"base64": "", "x": 1}}', "value: is not a text"),
        (b'{"value": "v", "partition": true}', "partition: True"),
        (b'{"value": "v", "timestamp": -1}', "timestamp: -1"),
        (b'{"value": "v", "headers": {"x": "1"}}', "headers: is not a list"),
        (b'{"value": "v", "headers": [["x"]]}', "is not \\[name, content\\]"),
        (b'{"value": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_json_that_is_no_record(line: bytes, why: str) -> None:
    with pytest.raises(BadLine, match=why):
        JsonLineFormat().read(line)
