"""Parsed options of the Spark sink. Pure.

Their names and meanings are in `option_table`.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from tallystick.client.settings.config import ProducerConfig
from tallystick.client.settings.kafka_names import ClientSettings
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value, replace
from tallystick.lake.names import StorageOptions, find_url_problem
from tallystick.spark.options.format_options import FormatOptions, parse_format_options
from tallystick.spark.options.option_table import (
    DECISIONS_TOPIC,
    KAFKA_PREFIX,
    ConnectorSide,
    QueryType,
)
from tallystick.spark.options.sinks import ToTable, find_sink_problems
from tallystick.spark.options.source_options import (
    build_client_settings,
    find_common_problems,
    select_storage_options,
)
from tallystick.spark.protocol.committable import WRITE_ID_BYTES_MAX
from tallystick.spark.protocol.decide import NewCheckpoint, NewPrefix
from tallystick.spark.protocol.repetition import ChangedRows, RepetitionRules
from tallystick.spark.protocol.transactional_ids import DATABASE_SUFFIX, find_prefix_problems

E = TypeVar("E", bound=Enum)

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Timeout of prepared transactions without two-phase commit: the default of transaction.max.timeout.ms."""

_COORDINATOR_TIMEOUT_MS: Final = 10_000
# A task sends in bulk, so its batches are larger than those of a service's producer.
_DEFAULTS: Final = {"batch.size": "262144", "linger.ms": "5"}
# The sink sets them itself.
_RESERVED: Final = (
    "transactional.id",
    "transaction.two.phase.commit.enable",
    "tallystick.modes",
    "enable.idempotence",
    "acks",
)


class SinkOptions(Value, kw_only=True):
    """Parsed options of a query's sink.

    prefix             of all its transactional ids; the last query to claim it owns it
    client             producer settings, by Kafka's names
    topic              the topic of all rows; overrides the column `topic`
    modes              acceptable ways to keep a prepared transaction, strongest first
    on_new_checkpoint  the action if the prefix has decisions of another query
    on_new_prefix      the action if the query continues and none of its decisions is known
    on_changed_rows    the action if a decided batch or write comes again with other rows
    write_id           the name of a batch write: a repetition of it writes nothing
    decisions_topic    the decision topic
    checkpoint         the location of the query's checkpoint, if the options have it
    tracing_setup      the function that switches tracing on in Spark's Python processes
    formats            how keys and values are encoded
    table              the lake table that gets the rows' column `row`, and decides
    """

    prefix: str
    client: Mapping[str, str]
    topic: str | None = None
    modes: tuple[str, ...] = (Mode.TWO_PHASE.value,)
    on_new_checkpoint: NewCheckpoint = NewCheckpoint.REFUSE
    on_new_prefix: NewPrefix = NewPrefix.REFUSE
    on_changed_rows: ChangedRows = ChangedRows.COMPARE_OFFSETS
    write_id: str | None = None
    decisions_topic: str = DECISIONS_TOPIC
    checkpoint: str | None = None
    tracing_setup: str | None = None
    formats: FormatOptions = FormatOptions()
    table: ToTable | None = None

    def list_producer_settings(self, transactional_id: str) -> dict[str, str]:
        """Return the settings of one attempt's producer, or of the recovery of its transaction."""
        two_phase = Mode.TWO_PHASE.value in self.modes
        ignores_timeout = self.modes == (Mode.TWO_PHASE.value,)
        timeout = {} if ignores_timeout else {"transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        return {
            **timeout,
            **self.client,
            "transactional.id": transactional_id,
            "tallystick.modes": ",".join(self.modes),
            "transaction.two.phase.commit.enable": str(two_phase).lower(),
        }

    @property
    def driver_client_settings(self) -> dict[str, str]:
        """Settings of the driver's client, without the tasks' transaction timeout: a slow decision fails."""
        return {n: t for n, t in self.client.items() if n != "transaction.timeout.ms"}

    @property
    def repetition_rules(self) -> RepetitionRules:
        """The rules for a batch that was decided before."""
        return RepetitionRules(
            on_changed_rows=self.on_changed_rows,
            accepts_other_sinks=self.on_new_prefix is NewPrefix.ADOPT,
        )

    @property
    def coordinator_timeout_ms(self) -> int:
        """Timeout of the coordinator's own transaction, which never uses two-phase commit."""
        return _COORDINATOR_TIMEOUT_MS


def parse_sink_options(raw_options: Mapping[str, str], query: QueryType) -> SinkOptions:
    """Parse the options of a writer.

    Args:
        raw_options: the options as Spark passes them: strings by name, in any case.
    Raises: BadConfig with all problems at once.
    """
    texts = {name.lower(): text.strip() for name, text in raw_options.items()}
    # Spark adds these two to the user's options.
    checkpoint, _ = texts.pop("checkpointlocation", None), texts.pop("queryname", None)
    problems = list(find_common_problems(texts, ConnectorSide.SINK, query))
    client = {**_DEFAULTS, **build_client_settings(texts)}
    problems += [
        f"{KAFKA_PREFIX}{name}: cannot be set: the sink sets it itself"
        for name in _RESERVED
        if client.pop(name, "")
    ]
    prefix = texts.get("transactional.id.prefix", "")
    problems += find_prefix_problems(prefix)
    if len(texts.get("write.id", "").encode()) > WRITE_ID_BYTES_MAX:
        problems.append(f"write.id: longer than {WRITE_ID_BYTES_MAX} bytes")
    options = SinkOptions(
        prefix=prefix,
        client=ClientSettings(client),
        topic=texts.get("topic") or None,
        modes=tuple(each.strip() for each in texts.get("tallystick.modes", "2pc").split(",")),
        on_new_checkpoint=_parse_choice(texts, "onNewCheckpoint", NewCheckpoint.REFUSE, problems),
        on_new_prefix=_parse_choice(texts, "onNewPrefix", NewPrefix.REFUSE, problems),
        on_changed_rows=_parse_choice(texts, "onChangedRows", ChangedRows.COMPARE_OFFSETS, problems),
        write_id=texts.get("write.id") or None,
        decisions_topic=texts.get("decisions.topic") or DECISIONS_TOPIC,
        checkpoint=checkpoint,
        tracing_setup=texts.get("tracing.setup") or None,
        formats=parse_format_options(texts, problems),
        table=_parse_table(texts, problems),
    )
    problems += _find_setup_problems(options.tracing_setup)
    problems += _find_client_problems(options)
    if problems:
        raise BadConfig("\n".join(problems))
    return options


def _parse_choice(texts: Mapping[str, str], name: str, default: E, problems: list[str]) -> E:
    text = texts.get(name.lower(), default.value)
    try:
        return type(default)(text)
    except ValueError:
        choices = ", ".join(each.value for each in type(default))
        problems.append(f"{name}: {text!r} is not one of {choices}")
        return default


def _parse_table(texts: Mapping[str, str], problems: list[str]) -> ToTable | None:
    if "table" not in texts:
        problems += [f"{name}: has an effect with table alone" for name in texts if name.startswith("table.")]
        return None
    write: Any = texts.get("table.write", "append")  # checked with the rest of the table
    merge = texts.get("table.mergeschema", "false").lower()
    table = ToTable(
        table=texts["table"],
        write=write,
        keys=tuple(key.strip() for key in texts.get("table.keys", "").split(",") if key.strip()),
        merge_schema=merge == "true",
        storage_options=StorageOptions.build(select_storage_options(texts)),
    )
    if merge not in ("true", "false"):
        problems.append(f"table.mergeSchema: {texts['table.mergeschema']!r} is not true or false")
    if not table.is_lake_table:
        problems.append(
            f"table: {table.table!r} is not the URL of a lake table, like delta:/lake/delays; tables of a "
            "database are written by foreach_batch"
        )
    else:
        problems += find_sink_problems((table,), None)
        if table.has_catalog_name:  # a data source has no session to ask
            problems.append(str(find_url_problem(table.table)))
    return table


def _find_setup_problems(setup: str | None) -> Iterator[str]:
    """Yield problems of the text. An import that fails shows only in the tasks' processes."""
    module, colon, name = (setup or "a:b").partition(":")
    if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        yield f"tracing.setup: {setup!r} is not of the form package.module:function"


def _find_client_problems(options: SinkOptions) -> Iterator[str]:
    try:
        ProducerConfig.parse(options.list_producer_settings("checked"))
    except BadConfig as exc:
        for line in str(exc).splitlines():
            is_own_setting = line.startswith("tallystick.")
            yield line if is_own_setting else f"{KAFKA_PREFIX}{line}"


def with_database_suffix(options: SinkOptions) -> SinkOptions:
    """Add the suffix to the prefix, so that readers of the decision topic do not end a table's batches."""
    return replace(options, prefix=options.prefix + DATABASE_SUFFIX)
