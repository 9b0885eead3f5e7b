"""Records as lines: values as text, and JSON that loses nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.client.blocking.record_lines import BadLine, JsonLines, ProducerRecord, TextLines
from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.protocol.records import TimestampType


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


def test_a_line_of_text_is_a_value_after_the_first_separator() -> None:
    assert TextLines().read(b"a\tb") == ProducerRecord(value=b"a\tb")
    assert TextLines().read(b"") == ProducerRecord(value=b"")
    assert TextLines("::").read(b"a::b::c") == ProducerRecord(key=b"a", value=b"b::c")
    with pytest.raises(BadLine, match="no key separator ':'"):
        TextLines(":").read(b"v")


def test_a_value_is_printed_as_it_is() -> None:
    assert TextLines().format(record(value=b"\xff\t")) == b"\xff\t\n"
    assert TextLines().format(record(value=None)) == b"null\n"


contents = st.none() | st.binary() | st.text().map(str.encode)


@given(contents, contents, st.lists(st.tuples(st.text(), contents)))
def test_json_reads_what_it_has_printed(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    shown = JsonLines().format(record(key=key, value=value, headers=tuple(headers)))
    assert shown.count(b"\n") == 1
    assert JsonLines().read(shown) == ProducerRecord(
        key=key, value=value, headers=tuple(headers), partition=3, timestamp_ms=9
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"valeu": "v"}', "unknown fields valeu; a record has headers, key,"),
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
        JsonLines().read(line)
