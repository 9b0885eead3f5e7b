"""Parser of `PIPELINE.toml`; reports all problems at once, each with its key's path. Pure.

`${NAME}` in a string stands for a variable passed by the caller, which keeps passwords out of the file.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.client.net.metadata import is_topic_name
from tallystick.client.settings.config import MODES
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.clients import list_problems
from tallystick.pipeline.definition import (
    REGISTERED,
    Definition,
    Lookup,
    OnMalformed,
    OutputDefinition,
    OwnBrokerDefinition,
    SinkDefinition,
    SourceDefinition,
    TableSink,
    TableWrite,
    TopicFormat,
    TopicSink,
    Transform,
    ValueFormat,
)
from tallystick.pipeline.toml_reader import Problems, Settings, TomlTable

# A name is a view in SQL and part of a transactional id.
_NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_VARIABLE_PATTERN: Final = re.compile(r"\$(?:\$|\{([^}]*)\})")
_AVAILABLE_NOW: Final = "available-now"
# What every interval has; the rest is Spark's to read.
_INTERVAL_PATTERN: Final = re.compile(r"\d.*(second|minute|hour|day|week)", re.IGNORECASE | re.DOTALL)


def parse_definition(text: str, source: str, variables: Mapping[str, str] | None = None) -> Definition:
    """Parse `text` into a definition.

    Args:
        source: file name for messages.
        variables: values of `${NAME}`; `$$` is a literal dollar sign.
    Raises: BadConfig: a syntax error with file, line and column, or all problems, one per line.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{source}: {error}") from None
    problems = Problems(source)
    filled = _substitute_in_table(document, "", dict(variables or {}), problems)
    definition = _parse_definition(TomlTable(filled, "", problems))
    if problems:  # then those of settings, too, which are found in the definition as a whole
        for problem in list_problems(definition):
            problems.add_new(*problem.split(": ", 1))
    problems.raise_if_any()
    return definition


def _substitute_in_table(
    table: Mapping[str, object], path: str, variables: Mapping[str, str], problems: Problems
) -> dict[str, object]:
    """Substitute variables in the values of `table`, recursively."""
    inner = f"{path}." if path else ""
    return {
        key: _substitute_variables(value, f"{inner}{key}", variables, problems)
        for key, value in table.items()
    }


def _substitute_variables(
    value: object, path: str, variables: Mapping[str, str], problems: Problems
) -> object:
    """Substitute variables in `value`, recursively."""
    match value:
        case dict():
            return _substitute_in_table(value, path, variables, problems)
        case list():
            return [
                _substitute_variables(x, f"{path}[{i}]", variables, problems) for i, x in enumerate(value)
            ]
        case str():
            unset = [n for n in _VARIABLE_PATTERN.findall(value) if n and n not in variables]
            for name in unset:
                problems.add(path, f"the variable {name} is not set")
            return (
                value if unset else _VARIABLE_PATTERN.sub(lambda m: variables[m[1]] if m[1] else "$", value)
            )
        case _:
            return value


def _parse_definition(top: TomlTable) -> Definition:
    kafka, broker = _parse_cluster(top)
    parts = {
        "sources": tuple(_parse_source(name, table) for name, table in top.named_tables("sources")),
        "lookups": tuple(_parse_lookup(name, table) for name, table in top.named_tables("lookups")),
        "transforms": tuple(_parse_transform(table) for table in top.table_list("transforms")),
        "outputs": tuple(_parse_output(name, table) for name, table in top.named_tables("outputs")),
        "kafka": kafka,
        "broker": broker,
    }
    definition = top.read(Definition, parts)
    _check_top_level(top, definition)
    _check_references(top, definition)
    return definition


def _check_top_level(top: TomlTable, definition: Definition) -> None:
    if definition.name:
        _check_name(top, "name", definition.name)
    if definition.trigger == _AVAILABLE_NOW:
        top.report(
            "trigger",
            "is an interval, like '5 seconds'; `tallystick run --once` reads what is there and ends",
        )
    elif definition.trigger is not None and not _INTERVAL_PATTERN.search(definition.trigger):
        top.report("trigger", f"{definition.trigger!r} is no interval of Spark's, like '5 seconds'")
    modes = list(MODES)
    for mode in definition.modes:
        if mode not in modes:
            top.report("modes", f"{mode!r} is not one of {', '.join(modes)}")


def _check_references(top: TomlTable, definition: Definition) -> None:
    """Check references and names across the parts of the definition."""
    if not definition.sources and "sources" not in top:
        top.report("sources", "is missing: a pipeline reads at least one, [sources.NAME]")
    if not definition.outputs and "outputs" not in top:
        top.report("outputs", "is missing: a pipeline writes at least one, [outputs.NAME]")
    transforms = [transform.name for transform in definition.transforms]
    names = [name for name in definition.view_names() if name]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        top.report("transforms" if twice in transforms else "lookups", f"two views are named {twice}")
    for output in definition.outputs:
        if output.view and output.view not in names:
            views = ", ".join(names) or "none"
            top.problems.add(
                f"outputs.{output.name}.from", f"there is no view {output.view!r}; there are: {views}"
            )


def _check_name(table: TomlTable, key: str, name: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        table.report(key, f"{name!r} is not a name: letters, digits and _, at most 100, no digit first")


def _check_topic(table: TomlTable, key: str, name: str) -> None:
    if name and not is_topic_name(name):
        table.report(key, f"{name!r} is not a topic's name: 1 to 249 of letters, digits, '.', '_' and '-'")


def _parse_cluster(top: TomlTable) -> tuple[Settings | None, OwnBrokerDefinition | None]:
    """Parse the settings of the cluster, or of the pipeline's own broker."""
    if "kafka" in top:
        settings = top.read_settings("kafka")
        if "bootstrap.servers" not in settings:
            top.problems.add(
                'kafka."bootstrap.servers"',
                "is missing; without [kafka] the pipeline runs a broker of its own",
            )
        if "broker" in top:
            top.report("broker", "is for a pipeline without [kafka]: which of the two shall it be?")
        return settings, None
    table = top.table("broker") if "broker" in top else None
    return None, table.read(OwnBrokerDefinition) if table else OwnBrokerDefinition(data_dir="data")


def _parse_source(name: str, table: TomlTable) -> SourceDefinition:
    _check_name(table, "", name)
    source = table.read(SourceDefinition, name=name)
    for topic in source.topics:
        _check_topic(table, "topics", topic)
    if ("topics" in table) == ("pattern" in table):
        table.report("topics", 'give either topics = ["..."] or pattern = "..."')
    if source.format is ValueFormat.JSON and "schema" not in table:
        table.report("schema", 'is missing: the fields of the JSON, like "id BIGINT, what STRING"')
    has_schema = source.format is ValueFormat.JSON or source.format.column_format is not None
    if source.schema is not None and not has_schema:
        why = f'goes with format = "json", {REGISTERED}; with {source.format} there is one column, `value`'
        table.report("schema", why)
    if source.message is not None and source.format is not ValueFormat.PROTOBUF:
        table.report("message", 'goes with format = "protobuf"')
    _check_topic(table, "dead-letter", source.dead_letter or "")
    if (source.malformed is OnMalformed.DEAD_LETTER) != (source.dead_letter is not None):
        table.report("dead-letter", 'a topic goes with malformed = "dead-letter", and the other way round')
    return source


def _parse_lookup(name: str, table: TomlTable) -> Lookup:
    _check_name(table, "", name)
    return table.read(Lookup, name=name)


def _parse_transform(table: TomlTable) -> Transform:
    transform = table.read(Transform, function=None)
    if transform.name:
        _check_name(table, "name", transform.name)
    if "sql" not in table:
        table.report("sql", "is missing: one SELECT over the views before it")
    return transform


def _parse_output(name: str, table: TomlTable) -> OutputDefinition:
    _check_name(table, "", name)
    sinks = tuple(_parse_sink(inner) for inner in table.table_list("sinks"))
    if not sinks and "sinks" not in table:
        table.report("sinks", f"is missing: [[{table.path}.sinks]] with topic = or table =")
    _check_tables(table, sinks)
    return table.read(OutputDefinition, {"sinks": sinks}, name=name)


def _check_tables(table: TomlTable, sinks: Iterable[SinkDefinition]) -> None:
    """Check that an output has no table twice, as rows are staged by table, and only one database."""
    tables = [sink for sink in sinks if isinstance(sink, TableSink) and sink.table]
    if any(sink.is_lake_table for sink in tables) and len(tables) > 1:
        table.report("sinks", "a lake table decides by its own commit: it is the only table of its output")
    elif len({sink.database for sink in tables}) > 1:
        table.report("sinks", "tables in two databases: one decision is one transaction of one database")
    names = [sink.table for sink in tables]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        table.report("sinks", f"the table {twice} is there twice")


def _parse_sink(table: TomlTable) -> SinkDefinition:
    if ("topic" in table) == ("table" in table):
        table.report("topic", "a sink has either topic = or table =")
        return TopicSink(topic="")
    if "topic" in table:
        topic_sink = table.read(TopicSink)
        _check_topic(table, "topic", topic_sink.topic)
        for key, kind in (("schema", topic_sink.format), ("key-schema", topic_sink.key_format)):
            if key in table and kind is TopicFormat.PLAIN:
                table.report(key, f"goes with {key.replace('schema', 'format')} = {REGISTERED}")
        for key, kind in (("message", topic_sink.format), ("key-message", topic_sink.key_format)):
            if key in table and kind is not TopicFormat.PROTOBUF:
                table.report(key, f'goes with {key.replace("message", "format")} = "protobuf"')
        if topic_sink.key_format is not TopicFormat.PLAIN and topic_sink.key is None:
            table.report("key-format", "has no key to encode")
        return topic_sink
    table_sink = table.read(TableSink)
    if (table_sink.write is TableWrite.UPSERT) != bool(table_sink.keys):
        table.report("keys", 'the key columns go with write = "upsert", and the other way round')
    _check_store(table, table_sink)
    return table_sink


def _check_store(table: TomlTable, sink: TableSink) -> None:
    """Check that a table is of a database, or of a lake and then has nothing of a database."""
    if not sink.is_lake_table:
        if sink.table and sink.database is None:
            table.report(
                "database",
                "is missing: an SQLAlchemy URL, like postgresql+psycopg://host/name; a lake table is "
                'table = "delta:/folder"',
            )
        for key in ("merge-schema", "storage-options"):
            if key in table:
                table.report(key, 'is for a lake table, like table = "delta:/folder"')
        return
    if sink.database is not None:
        table.report("database", "is not for a lake table, whose own commit is the decision")
