"""Records as lines, without their end when they are read: values as text, or JSON. Pure.

JSON is lossless: `JsonLines` reads every line that it prints.
"""

import binascii
import json
from base64 import b64decode, b64encode
from enum import Enum
from typing import Final

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.value import Value
from tallystick.protocol.records import Headers, TimestampType

_LINE_CHARS_MAX: Final = 60
_TIMESTAMP_TYPES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
# Fields of a printed record that a sent one cannot choose.
_LOG_FIELDS: Final = frozenset({"topic", "offset", "timestamp_type", "leader_epoch"})
_RECORD_FIELDS: Final = frozenset({"partition", "timestamp", "headers", "key", "value"})


class BadLine(TallystickError):
    """A line is not a record in the requested form. No record of it was sent."""

    def __init__(self, why: str, line: bytes) -> None:
        super().__init__(why, line)
        self.why, self.line = why, line

    def __str__(self) -> str:
        text = self.line.decode(errors="backslashreplace")
        return f"{self.why}: {text if len(text) <= _LINE_CHARS_MAX else text[:_LINE_CHARS_MAX] + '…'!r}"


class ProducerRecord(Value, kw_only=True):
    """A record to send; None where the line leaves the choice to the producer."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class LineFormat(Enum):
    """Name of a format on the command line."""

    TEXT = "text"
    JSON = "json"


class TextLines(Value):
    """Lines of text: a record's value, after its key if there is a `key_separator`.

    Printed lines are values alone. A null prints as `null`, and cannot be sent.
    """

    key_separator: str | None = None

    def read(self, line: bytes) -> ProducerRecord:
        if self.key_separator is None:
            return ProducerRecord(value=line)
        key, separator, value = line.partition(self.key_separator.encode())
        if not separator:
            raise BadLine(f"no key separator {self.key_separator!r} in it", line)
        return ProducerRecord(key=key, value=value)

    def format(self, record: ConsumerRecord) -> bytes:
        return (b"null" if record.value is None else record.value) + b"\n"


class JsonLines:
    """Lines that are a JSON object each.

    `{"topic", "partition", "offset", "timestamp", "timestamp_type", "leader_epoch", "headers": [[name,
    content], ...], "key", "value"}`, where a content is a text, null, or `{"base64": "..."}` for bytes that
    are not UTF-8. A line to send needs only one of key and value, and fields that belong to the log are
    ignored, so that a topic can be copied.
    """

    def read(self, line: bytes) -> ProducerRecord:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise BadLine(f"not JSON ({exc})", line) from None
        if not isinstance(message, dict):
            raise BadLine("not a JSON object", line)
        stray = message.keys() - _LOG_FIELDS - _RECORD_FIELDS
        if stray:
            names = ", ".join(sorted(_LOG_FIELDS | _RECORD_FIELDS))
            raise BadLine(f"unknown fields {', '.join(sorted(stray))}; a record has {names}", line)
        if not message.keys() & {"key", "value"}:
            raise BadLine("neither key nor value", line)
        try:
            return ProducerRecord(
                value=_decode_content(message.get("value"), "value"),
                key=_decode_content(message.get("key"), "key"),
                headers=_decode_headers(message.get("headers") or []),
                partition=_check_number(message.get("partition"), "partition", INT32_MAX),
                timestamp_ms=_check_number(message.get("timestamp"), "timestamp", INT64_MAX),
            )
        except ValueError as exc:
            raise BadLine(str(exc), line) from None

    def format(self, record: ConsumerRecord) -> bytes:
        message = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": _TIMESTAMP_TYPES[record.timestamp_type],
            "leader_epoch": record.leader_epoch,
            "headers": [[name, _encode_content(value)] for name, value in record.headers],
            "key": _encode_content(record.key),
            "value": _encode_content(record.value),
        }
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


RecordLines = TextLines | JsonLines


def _encode_content(content: bytes | None) -> str | dict[str, str] | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


def _decode_content(content: object, name: str) -> bytes | None:
    match content:
        case None:
            return None
        case str():
            return content.encode()
        case {"base64": str(text), **others} if not others:
            try:
                return b64decode(text, validate=True)
            except binascii.Error as exc:
                raise ValueError(f"{name}: base64: {exc}") from None
    raise ValueError(f'{name}: is not a text, null or {{"base64": "..."}}')


def _decode_headers(pairs: object) -> Headers:
    if not isinstance(pairs, list):
        raise ValueError("headers: is not a list of [name, content]")
    headers = []
    for pair in pairs:
        match pair:
            case [str(name), content]:
                headers.append((name, _decode_content(content, f"header {name}")))
            case _:
                raise ValueError(f"headers: {pair!r} is not [name, content]")
    return tuple(headers)


def _check_number(number: object, name: str, high: int) -> int | None:
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= high:
        raise ValueError(f"{name}: {number!r} is not a number from 0 to {high}")
    return number
