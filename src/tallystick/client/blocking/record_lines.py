"""Records as lines: text, as Kafka's console tools read and print it, and JSON. Pure.

A line to send is headers, key and value, of which the first two are optional:

    name:value,name:value <headers.delimiter> key <key.separator> value

A printed line has the requested fields, in Kafka's order: timestamp, partition, offset, leader epoch,
headers, key, value. JSON is lossless: `JsonLineFormat` reads every line that it prints, and bytes that are
not UTF-8 are `{"base64": "..."}`.

Source: Kafka 4.3 LineMessageReader and DefaultMessageFormatter.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT32_MAX, INT64_MAX
from tallystick.kernel.settings import BadConfig, describe_unknown
from tallystick.kernel.value import Value
from tallystick.protocol.records import Headers, TimestampType

F = TypeVar("F")

_LINE_CHARS_MAX: Final = 60
_TIMESTAMP_TYPES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
# Fields of a printed record that a sent one cannot choose: ignored, so that a topic can be copied.
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


class RecordReader(Protocol):
    """Reader of lines, without their end, as records."""

    def read(self, line: bytes) -> ProducerRecord:
        """Read one line. Raises: BadLine."""
        ...


class MessageFormatter(Protocol):
    """Formatter of records as lines, the end included."""

    def format(self, record: ConsumerRecord) -> bytes: ...


# ------------------------------------------------------------------------------------ text


class LineReader(Value, kw_only=True):
    """Splits lines into records. The fields are Kafka's properties, with dots: `parse.key`, `null.marker` ...

    ignore_error  a line without a separator has no key, or no headers, and is no error
    """

    parse_key: bool = False
    parse_headers: bool = False
    key_separator: str = "\t"
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    null_marker: str | None = None
    ignore_error: bool = False

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> "LineReader":
        """Read the properties. Raises: BadConfig with every problem."""
        reader = _parse_properties(cls, properties, "--property")
        marks = {
            "headers.delimiter": reader.headers_delimiter,
            "headers.separator": reader.headers_separator,
            "headers.key.separator": reader.headers_key_separator,
        }
        problems = [f"--property {name}: must not be empty" for name, text in marks.items() if not text]
        if not reader.key_separator:
            problems.append("--property key.separator: must not be empty")
        if len({*marks.values()}) < len(marks):
            problems.append(f"--property {', '.join(marks)}: must be different from each other")
        if reader.null_marker in {reader.key_separator, *marks.values()}:
            problems.append("--property null.marker: must be different from the separators")
        if problems:
            raise BadConfig("\n".join(problems))
        return reader

    def read(self, line: bytes) -> ProducerRecord:
        headers, content = self._split_once(
            line, line, self.parse_headers, self.headers_delimiter, "headers delimiter"
        )
        key, value = self._split_once(line, content, self.parse_key, self.key_separator, "key separator")
        return ProducerRecord(
            value=self._parse_content(value),
            key=None if key is None else self._parse_content(key),
            headers=() if headers is None or self._is_null(headers) else self._parse_headers(headers, line),
        )

    def _split_once(
        self, line: bytes, content: bytes, is_enabled: bool, mark: str, name: str
    ) -> tuple[bytes | None, bytes]:
        if not is_enabled:
            return None, content
        before, separator, after = content.partition(mark.encode())
        if separator:
            return before, after
        if self.ignore_error:
            return None, content
        raise BadLine(f"no {name} {mark!r} in it", line)

    def _parse_headers(self, text: bytes, line: bytes) -> Headers:
        headers = []
        for pair in text.split(self.headers_separator.encode()):
            name, separator, value = pair.partition(self.headers_key_separator.encode())
            if not separator and not self.ignore_error:
                raise BadLine(f"no {self.headers_key_separator!r} in the header {pair!r}", line)
            if self._is_null(name):
                raise BadLine("a header's name is the null marker", line)
            try:
                headers.append((name.decode(), self._parse_content(value) if separator else None))
            except UnicodeDecodeError:
                raise BadLine(f"a header's name is not UTF-8: {name!r}", line) from None
        return tuple(headers)

    def _is_null(self, text: bytes) -> bool:
        return self.null_marker is not None and text == self.null_marker.encode()

    def _parse_content(self, text: bytes) -> bytes | None:
        return None if self._is_null(text) else text


class LineWriter(Value, kw_only=True):
    """Formats records as lines.

    The fields are Kafka's properties, with dots: `print.key`, `key.separator` ...
    """

    print_timestamp: bool = False
    print_partition: bool = False
    print_offset: bool = False
    print_epoch: bool = False
    print_headers: bool = False
    print_key: bool = False
    print_value: bool = True
    key_separator: str = "\t"
    line_separator: str = "\n"
    headers_separator: str = ","
    null_literal: str = "null"

    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> "LineWriter":
        """Read the properties. Raises: BadConfig with every problem."""
        return _parse_properties(cls, properties, "--property")

    def format(self, record: ConsumerRecord) -> bytes:
        parts = []
        if self.print_timestamp:
            parts.append(f"{_TIMESTAMP_TYPES[record.timestamp_type]}:{record.timestamp_ms}".encode())
        if self.print_partition:
            parts.append(b"Partition:%d" % record.partition)
        if self.print_offset:
            parts.append(b"Offset:%d" % record.offset)
        if self.print_epoch:
            epoch = record.leader_epoch
            parts.append(self.null_literal.encode() if epoch is None else b"Epoch:%d" % epoch)
        if self.print_headers:
            headers = [name.encode() + b":" + self._format_content(value) for name, value in record.headers]
            parts.append(self.headers_separator.encode().join(headers) if headers else b"NO_HEADERS")
        if self.print_key:
            parts.append(self._format_content(record.key))
        if self.print_value:
            parts.append(self._format_content(record.value))
        return self.key_separator.encode().join(parts) + self.line_separator.encode()

    def _format_content(self, content: bytes | None) -> bytes:
        return self.null_literal.encode() if content is None else content


def _parse_properties(cls: type[F], properties: Mapping[str, str], option: str) -> F:
    """Make an instance from texts by dotted name. Separators may be blank, so nothing is stripped."""
    fields = {name.replace("_", "."): name for name in cls.__annotations__}
    values: dict[str, object] = {}
    problems = []
    for name, text in properties.items():
        if name not in fields:
            problems.append(f"{option} {describe_unknown(name, fields)}")
        elif cls.__annotations__[fields[name]] is not bool:
            values[fields[name]] = text
        elif text.lower() in ("true", "false"):
            values[fields[name]] = text.lower() == "true"
        else:
            problems.append(f"{option} {name}: {text!r} is not true or false")
    if problems:
        raise BadConfig("\n".join(problems))
    return cls(**values)


# ------------------------------------------------------------------------------------ JSON


class JsonLineFormat:
    """JSON lines, one object each.

    `{"topic", "partition", "offset", "timestamp", "timestamp_type", "leader_epoch", "headers": [[name,
    content], ...], "key", "value"}`, where a content is a text, null, or `{"base64": "..."}`. A line to send
    needs only one of key and value, and fields that belong to the log are ignored.
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
            raise BadLine(f"no record has {', '.join(sorted(stray))}", line)
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
