"""Parsed options of the Spark source: those of Spark's own Kafka source, by the same names.

Every option of Spark's Kafka guide is in `OPTIONS`: supported, accepted without effect, or refused with the
reason; docs/spark/options.md shows the table. Names are compared in lower case, as Spark passes them, and all
problems are reported at once. `kafka.` and a name is a setting of our consumer or producer: docs/config.md.

Source: Spark 4.3 docs/streaming/structured-streaming-kafka-integration.md; KafkaSourceProvider.scala.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, cast

from tallystick import _lazy
from tallystick.client.settings.config import ConsumerConfig
from tallystick.client.settings.kafka_names import ClientSettings
from tallystick.kernel.ids import INT32_MAX, INT64_MAX, TopicPartition
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value
from tallystick.lake.names import NO_OPTIONS, StorageOptions
from tallystick.spark.options.format_options import (
    REGISTRY_PREFIX,
    FormatOptions,
    parse_format_options,
)
from tallystick.spark.options.option_table import (
    DECISIONS_TOPIC,
    KAFKA_PREFIX,
    OPTIONS,
    TABLE_STORAGE_PREFIX,
    ConnectorSide,
    Option,
    OptionSupport,
    QueryType,
)
from tallystick.spark.protocol.transactional_ids import find_prefix_problems

_READ_COMMITTED: Final = "read_committed"

# Topics of ours, like that of decisions: a query that reads what its own batches write is never idle.
_INTERNAL_PREFIX: Final = "__tallystick_"


# --------------------------------------------------------------------------------- which topics


class Subscribed(Value):
    """Topics by name."""

    topics: tuple[str, ...]


class Matching(Value):
    """All topics whose whole name matches the pattern, except internal ones."""

    pattern: str

    def matches(self, topic: str) -> bool:
        """Tell whether a topic is read; whether Kafka calls it internal is not asked here."""
        return not topic.startswith(_INTERNAL_PREFIX) and re.fullmatch(self.pattern, topic) is not None


class Assigned(Value):
    """Exactly these partitions."""

    partitions: tuple[TopicPartition, ...]


ConsumerStrategy = Subscribed | Matching | Assigned


# ------------------------------------------------------------------------- where to begin, to end


class Edge(Enum):
    """An end of the log; the value stands for it in JSON."""

    EARLIEST = -2
    LATEST = -1


class AtOffsets(Value):
    """An offset, or an end of the log, for every partition."""

    offsets: Mapping[TopicPartition, int | Edge]


class AtTimes(Value):
    """The first record of a time or later, in milliseconds since the epoch, for every partition."""

    times_ms: Mapping[TopicPartition, int]


class AtTime(Value):
    """The same time for all partitions."""

    time_ms: int


OffsetRangeLimit = Edge | AtOffsets | AtTimes | AtTime


class ResumeOptions(Value, kw_only=True):
    """The sink whose last decision gives the start offsets.

    prefix           the sink's `transactional.id.prefix`
    decisions_topic  the decision topic, in the cluster that is read
    database         the URL of the database, or of the lake table, that has the decisions instead
    storage_options  of such a table
    """

    prefix: str
    decisions_topic: str = DECISIONS_TOPIC
    database: str | None = None
    storage_options: StorageOptions = NO_OPTIONS


class SourceOptions(Value, kw_only=True):
    """Parsed options of a query's source.

    latest_if_no_match   if no record is at or after the start time, start at the end of the log: no error
    client               consumer settings, by Kafka's names
    checkpoint           the query's checkpoint, if given, where the source keeps its start offsets
    resume               begin where a sink's last decision ended, if there is one
    formats              how keys and values are encoded
    """

    topics: ConsumerStrategy
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    client: Mapping[str, str]
    latest_if_no_match: bool = False
    include_headers: bool = False
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    checkpoint: str | None = None
    resume: ResumeOptions | None = None
    formats: FormatOptions = FormatOptions()

    @property
    def read_committed(self) -> bool:
        """True if batches end at the last stable offset."""
        return self.client["isolation.level"] == _READ_COMMITTED


def parse_source_options(raw_options: Mapping[str, str], query: QueryType | None = None) -> SourceOptions:
    """Parse the options of a reader.

    Args:
        raw_options: the options as Spark passes them: strings by name, in any case.
        query: a batch or a stream; None if that is not known yet, and then only problems of both are
            reported.
    Raises: BadConfig with all problems at once.
    """
    texts = {name.lower(): text.strip() for name, text in raw_options.items()}
    values, problems = _parse_values(texts, query)
    client = {"isolation.level": _READ_COMMITTED, **build_client_settings(texts)}
    problems += _find_client_problems(client)
    topics = _select_topics(values, problems)
    start = _select_limit(values, "starting", Edge.LATEST if query is QueryType.STREAM else Edge.EARLIEST)
    end = _select_limit(values, "ending", Edge.LATEST)
    problems += _find_rate_limit_problems(values)
    resume = _parse_resume(texts, problems)
    formats = parse_format_options(texts, problems)
    if query is QueryType.BATCH:
        problems += _find_batch_problems(start, end)
    if problems or topics is None:
        raise BadConfig("\n".join(problems))
    fields = {field: values[name] for name, field in _FIELD_NAMES.items() if name in values}
    fields |= {"resume": resume, "formats": formats}
    return SourceOptions(topics=topics, starting=start, ending=end, client=ClientSettings(client), **fields)  # type: ignore[arg-type]


def build_client_settings(raw_options: Mapping[str, str]) -> dict[str, str]:
    """Return the Kafka client settings among the options, except those without effect or refused."""
    not_taken = {o.name.lower() for o in OPTIONS if o.support is not OptionSupport.SUPPORTED}
    texts = {name.lower(): text for name, text in raw_options.items()}
    return {
        n.removeprefix(KAFKA_PREFIX): t
        for n, t in texts.items()
        if n.startswith(KAFKA_PREFIX) and n not in not_taken
    }


def find_common_problems(
    texts: Mapping[str, str], side: ConnectorSide, query: QueryType | None
) -> Iterator[str]:
    """Yield a problem for each option that is unknown, refused, or for the other side or kind of query.

    Args:
        texts: the options by name in lower case.
    """
    options = {o.name.lower(): o for o in OPTIONS if side in o.sides}
    other_options = {o.name.lower(): o for o in OPTIONS if side not in o.sides}
    for name, text in texts.items():
        option = options.get(name)
        if option is None and name in other_options:
            other = other_options[name]
            yield f"{other.name}: an option of the {other.sides[0].value}, this is a {side.value}"
        elif option is None:
            if not name.startswith((KAFKA_PREFIX, REGISTRY_PREFIX, TABLE_STORAGE_PREFIX)):
                yield _explain_unknown_option(name, options)
        elif option.support is OptionSupport.REFUSED:
            yield f"{option.name}: {text!r} is refused: {option.doc}"
        elif query is not None and query not in option.queries and not option.ignored_elsewhere:
            yield f"{option.name}: only in a {option.queries[0].value} query"


def _explain_unknown_option(name: str, options: Mapping[str, Option]) -> str:
    matches = _lazy.load("difflib").get_close_matches(name, options, n=1, cutoff=0.6)
    return f"{name}: unknown option" + (f"; did you mean {options[matches[0]].name}?" if matches else "")


# -------------------------------------------------------------------------------- reading values


def _parse_values(texts: Mapping[str, str], query: QueryType | None) -> tuple[dict[str, object], list[str]]:
    """Return the values of the source's own options, and their problems."""
    problems = list(find_common_problems(texts, ConnectorSide.SOURCE, query))
    values: dict[str, object] = {}
    names = {option.name.lower(): option.name for option in OPTIONS}
    for name, parse in _PARSERS.items():
        if name in texts:
            try:
                values[name] = parse(texts[name])
            except ValueError as exc:
                problems.append(f"{names[name]}: {exc}")
    return values, problems


def _find_client_problems(client: Mapping[str, str]) -> Iterator[str]:
    try:
        ConsumerConfig.parse(client)
    except BadConfig as exc:
        yield from (f"{KAFKA_PREFIX}{line}" for line in str(exc).splitlines())


def _select_topics(values: Mapping[str, object], problems: list[str]) -> ConsumerStrategy | None:
    names = [name for name in ("assign", "subscribe", "subscribepattern") if name in values]
    if len(names) == 1:
        return cast(ConsumerStrategy, values[names[0]])
    if names or not any(line.startswith(("assign:", "subscribe")) for line in problems):
        problems.append("assign, subscribe, subscribePattern: exactly one of these options is required")
    return None


def _select_limit(values: Mapping[str, object], side: str, default: Edge) -> OffsetRangeLimit:
    """Return the place in Spark's order of preference: one time for all, times, offsets."""
    for name in (f"{side}timestamp", f"{side}offsetsbytimestamp", f"{side}offsets"):
        if name in values:
            return cast(OffsetRangeLimit, values[name])
    return default


def _find_rate_limit_problems(values: Mapping[str, object]) -> Iterator[str]:
    least, most = values.get("minoffsetspertrigger"), values.get("maxoffsetspertrigger")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        yield f"minOffsetsPerTrigger: {least} is above maxOffsetsPerTrigger {most}"


def select_storage_options(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a lake table's storage, by the names of its library in lower case."""
    return {
        name.removeprefix(TABLE_STORAGE_PREFIX): text
        for name, text in texts.items()
        if name.startswith(TABLE_STORAGE_PREFIX)
    }


def _parse_resume(texts: Mapping[str, str], problems: list[str]) -> ResumeOptions | None:
    prefix = texts.get("resume.from.prefix")
    storage = select_storage_options(texts)
    if not prefix:
        for name in ("resume.from.database", "decisions.topic", *(TABLE_STORAGE_PREFIX + n for n in storage)):
            if name in texts:
                problems.append(f"{name}: has an effect with resume.from.prefix alone, which is not given")
        return None
    problems += [line.replace("transactional.id", "resume.from", 1) for line in find_prefix_problems(prefix)]
    if "checkpointlocation" not in texts:
        problems.append("resume.from.prefix: checkpointLocation must be given as well, the query's own")
    return ResumeOptions(
        prefix=prefix,
        decisions_topic=texts.get("decisions.topic") or DECISIONS_TOPIC,
        database=texts.get("resume.from.database"),
        storage_options=StorageOptions.build(storage),
    )


def _find_batch_problems(start: OffsetRangeLimit, end: OffsetRangeLimit) -> Iterator[str]:
    """Yield the problems of a batch's range: it may not start at latest, end at earliest, or be inverted."""
    if start is Edge.LATEST:
        yield "startingOffsets: a batch cannot start at latest, it would read nothing"
    if end is Edge.EARLIEST:
        yield "endingOffsets: a batch cannot end at earliest, it would read nothing"
    if isinstance(start, AtOffsets):
        for at in sorted(at for at, offset in start.offsets.items() if offset is Edge.LATEST):
            yield f"startingOffsets: {at} cannot start at latest (-1) in a batch"
    if isinstance(end, AtOffsets):
        for at in sorted(at for at, offset in end.offsets.items() if offset is Edge.EARLIEST):
            yield f"endingOffsets: {at} cannot end at earliest (-2)"
    match start, end:
        case AtOffsets(offsets=starts), AtOffsets(offsets=ends):
            yield from _find_range_problems("Offsets", starts, ends)
        case AtTimes(times_ms=first_ms), AtTimes(times_ms=last_ms):
            yield from _find_range_problems("OffsetsByTimestamp", first_ms, last_ms)


def _find_range_problems(
    suffix: str,
    starts: Mapping[TopicPartition, int | Edge],
    ends: Mapping[TopicPartition, int | Edge],
) -> Iterator[str]:
    apart = sorted(set(starts) ^ set(ends))
    if apart:
        yield f"starting{suffix}, ending{suffix}: only one of them names {', '.join(map(str, apart))}"
    for at in sorted(set(starts) & set(ends)):
        begin, end = starts[at], ends[at]
        if isinstance(begin, int) and isinstance(end, int) and begin > end:
            yield f"starting{suffix}: {at} starts at {begin}, behind its end {end}"


# ------------------------------------------------------------------------------- forms of values


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _build_integer_parser(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


_parse_count: Final = _build_integer_parser(1, INT64_MAX)
_parse_timestamp_ms: Final = _build_integer_parser(0, INT64_MAX)

# Spark's JavaUtils.timeStringAs: a number without a unit is in milliseconds here.
_UNITS_MS: Final = {
    "us": 0.001, "ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


def _parse_duration_ms(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError(f"{text!r} is not a time such as 100ms, 30s, 15m, 2h, 1d")
    return int(int(match[1]) * _UNITS_MS[match[2]])


def _parse_subscribe(text: str) -> Subscribed:
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise ValueError("no topic is named")
    return Subscribed(topics)


def _parse_pattern(text: str) -> Matching:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"{text!r} is not a regular expression: {exc}") from exc
    if not text:
        raise ValueError("the pattern is empty")
    return Matching(text)


def _parse_assign(text: str) -> Assigned:
    form = 'JSON such as {"topicA":[0,1],"topicB":[2]}'
    topics = _parse_json_object(text, form)
    partitions = []
    for topic, numbers in topics.items():
        if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
            raise ValueError(f"{text!r} is not {form}")
        partitions += [TopicPartition(topic, number) for number in numbers]
    if not partitions:
        raise ValueError("no partition is named")
    return Assigned(tuple(sorted(set(partitions))))


def _parse_by_partition(text: str, form: str, least: int) -> dict[TopicPartition, int]:
    offsets = {}
    for topic, numbers in _parse_json_object(text, form).items():
        if not isinstance(numbers, dict):
            raise ValueError(f"{text!r} is not {form}")
        for number, value in numbers.items():
            if not number.isdecimal() or not _is_partition(int(number)) or type(value) is not int:
                raise ValueError(f"{topic} {number}: {value!r}, in what should be {form}")
            if not least <= value <= INT64_MAX:
                raise ValueError(f"{topic} {number}: {value} is not {least} to {INT64_MAX}")
            offsets[TopicPartition(topic, int(number))] = value
    if not offsets:
        raise ValueError("no partition is named")
    return offsets


def _parse_offsets(text: str) -> OffsetRangeLimit:
    """Parse `earliest`, `latest`, or JSON in which -2 and -1 stand for them."""
    if text.lower() in ("earliest", "latest"):
        return Edge[text.upper()]
    form = 'earliest, latest, or JSON such as {"topicA":{"0":23,"1":-1}}'
    offsets = _parse_by_partition(text, form, Edge.EARLIEST.value)
    return AtOffsets({at: Edge(offset) if offset < 0 else offset for at, offset in offsets.items()})


def _parse_timestamps(text: str) -> OffsetRangeLimit:
    return AtTimes(_parse_by_partition(text, 'JSON such as {"topicA":{"0":1000}}, in milliseconds', 0))


def _parse_strategy(text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise ValueError(f"{text!r} is not error or latest")
    return text.lower() == "latest"


def _parse_json_object(text: str, form: str) -> dict[str, object]:
    try:
        parsed_object = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} is not {form}") from exc
    if not isinstance(parsed_object, dict):
        raise ValueError(f"{text!r} is not {form}")
    return parsed_object


def _is_partition(number: object) -> bool:
    return type(number) is int and 0 <= number <= INT32_MAX


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "assign": _parse_assign,
    "subscribe": _parse_subscribe,
    "subscribepattern": _parse_pattern,
    "startingtimestamp": lambda text: AtTime(_parse_timestamp_ms(text)),
    "startingoffsetsbytimestamp": _parse_timestamps,
    "startingoffsets": _parse_offsets,
    "startingoffsetsbytimestampstrategy": _parse_strategy,
    "endingtimestamp": lambda text: AtTime(_parse_timestamp_ms(text)),
    "endingoffsetsbytimestamp": _parse_timestamps,
    "endingoffsets": _parse_offsets,
    "failondataloss": _parse_boolean,
    "includeheaders": _parse_boolean,
    "kafkaconsumer.polltimeoutms": _build_integer_parser(1, INT32_MAX),
    "maxoffsetspertrigger": _parse_count,
    "minoffsetspertrigger": _parse_count,
    "maxtriggerdelay": _parse_duration_ms,
    "minpartitions": _build_integer_parser(1, INT32_MAX),
    "maxrecordsperpartition": _parse_count,
    "checkpointlocation": str,
}

_FIELD_NAMES: Final = {
    "startingoffsetsbytimestampstrategy": "latest_if_no_match",
    "failondataloss": "fail_on_data_loss",
    "includeheaders": "include_headers",
    "kafkaconsumer.polltimeoutms": "poll_timeout_ms",
    "maxoffsetspertrigger": "max_offsets",
    "minoffsetspertrigger": "min_offsets",
    "maxtriggerdelay": "max_trigger_delay_ms",
    "minpartitions": "min_partitions",
    "maxrecordsperpartition": "max_records_per_partition",
    "checkpointlocation": "checkpoint",
}
