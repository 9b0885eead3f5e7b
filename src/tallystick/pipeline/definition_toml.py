"""Parser of `PIPELINE.toml`; reports all problems at once, each with its key's path. Pure.

`${NAME}` in a string stands for a variable passed by the caller, which keeps passwords out of the file.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.client.net.metadata import is_topic_name
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    Lookup,
    OnMalformed,
    OutputDefinition,
    OutputMode,
    OwnBrokerDefinition,
    SinkDefinition,
    SourceDefinition,
    TableSink,
    TableWrite,
    TopicSink,
    Transform,
    ValueFormat,
    Watermark,
)
from tallystick.pipeline.toml_reader import Problems, TomlTable

# A name is a view in SQL and part of a transactional id.
_NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_VARIABLE_PATTERN: Final = re.compile(r"\$(?:\$|\{([^}]*)\})")
_AVAILABLE_NOW: Final = "available-now"


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
    filled = _substitute_variables(document, "", dict(variables or {}), problems)
    assert isinstance(filled, dict)
    definition = _parse_definition(TomlTable(filled, "", problems))
    problems.raise_if_any()
    return definition


def _substitute_variables(
    value: object, path: str, variables: Mapping[str, str], problems: Problems
) -> object:
    """Substitute variables in `value`, recursively."""
    match value:
        case dict():
            inner = f"{path}." if path else ""
            return {
                key: _substitute_variables(x, f"{inner}{key}", variables, problems)
                for key, x in value.items()
            }
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
    name = _parse_name(top, "name", "it names the query and its transactional ids")
    checkpoint = top.required_text("checkpoint", "the directory where Spark keeps how far it has read")
    sources = tuple(_parse_source(name, table) for name, table in top.named_tables("sources"))
    lookups = tuple(_parse_lookup(name, table) for name, table in top.named_tables("lookups"))
    transforms = tuple(_parse_transform(table) for table in top.table_list("transforms"))
    outputs = tuple(_parse_output(name, table) for name, table in top.named_tables("outputs"))
    kafka, broker = _parse_cluster(top)
    made = Definition(
        name=name,
        checkpoint=checkpoint,
        sources=sources,
        lookups=lookups,
        transforms=transforms,
        outputs=outputs,
        trigger=_parse_trigger(top),
        modes=_parse_modes(top),
        kafka=kafka,
        broker=broker,
        spark=top.settings("spark"),
    )
    top.report_unknown_keys()
    _check_references(top, made)
    return made


def _check_references(top: TomlTable, made: Definition) -> None:
    """Check references and names across the parts of the definition."""
    if not made.sources and "sources" not in top:
        top.report("sources", "is missing: a pipeline reads at least one, [sources.NAME]")
    if not made.outputs and "outputs" not in top:
        top.report("outputs", "is missing: a pipeline writes at least one, [outputs.NAME]")
    transforms = [transform.name for transform in made.transforms]
    views = [source.name for source in made.sources] + [lookup.name for lookup in made.lookups]
    names = [name for name in views + transforms if name]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        top.report("transforms" if twice in transforms else "lookups", f"two views are named {twice}")
    for output in made.outputs:
        if output.view and output.view not in names:
            known = ", ".join(names) or "none"
            top.problems.add(
                f"outputs.{output.name}.from", f"there is no view {output.view!r}; there are: {known}"
            )


def _parse_name(table: TomlTable, key: str, what: str) -> str:
    name = table.required_text(key, what)
    if name:
        _check_name(table, key, name)
    return name


def _check_name(table: TomlTable, key: str, name: str) -> None:
    if not _NAME_PATTERN.fullmatch(name):
        table.report(key, f"{name!r} is not a name: letters, digits and _, at most 100, no digit first")


def _check_topic(table: TomlTable, key: str, name: str) -> None:
    if name and not is_topic_name(name):
        table.report(key, f"{name!r} is not a topic's name: 1 to 249 of letters, digits, '.', '_' and '-'")


def _parse_trigger(top: TomlTable) -> str | None:
    trigger = top.text("trigger")
    if trigger == _AVAILABLE_NOW:
        top.report(
            "trigger",
            "is an interval, like '5 seconds'; `tallystick run --once` reads what is there and ends",
        )
    return trigger


def _parse_modes(top: TomlTable) -> tuple[str, ...]:
    modes = top.texts("modes") or (Mode.TWO_PHASE.value,)
    known = [mode.value for mode in Mode]
    for mode in modes:
        if mode not in known:
            top.report("modes", f"{mode!r} is not one of {', '.join(known)}")
    return modes


def _parse_cluster(top: TomlTable) -> tuple[Mapping[str, str] | None, OwnBrokerDefinition | None]:
    """Parse the settings of the cluster, or of the pipeline's own broker."""
    if "kafka" in top:
        settings = top.settings("kafka")
        if "bootstrap.servers" not in settings:
            top.problems.add(
                'kafka."bootstrap.servers"',
                "is missing; without [kafka] the pipeline runs a broker of its own",
            )
        if "broker" in top:
            top.table("broker")
            top.report("broker", "is for a pipeline without [kafka]: which of the two shall it be?")
        return settings, None
    table = top.table("broker")
    if table is None:
        return None, OwnBrokerDefinition(data_dir="data")
    broker = OwnBrokerDefinition(
        data_dir=table.required_text("data-dir", "the directory of the broker's files"),
        listen=table.text("listen"),
        settings=table.settings("settings"),
    )
    table.report_unknown_keys()
    return None, broker


def _parse_source(name: str, table: TomlTable) -> SourceDefinition:
    _check_name(table, "", name)
    topics, pattern = table.texts("topics"), table.text("pattern")
    for topic in topics:
        _check_topic(table, "topics", topic)
    if bool(topics) == bool(pattern):
        table.report("topics", 'give either topics = ["..."] or pattern = "..."')
    form = table.choice("format", ValueFormat, ValueFormat.JSON)
    schema = table.text("schema")
    if form is ValueFormat.JSON and schema is None and "schema" not in table:
        table.report("schema", 'is missing: the fields of the JSON, like "id BIGINT, what STRING"')
    if form is not ValueFormat.JSON and schema is not None:
        table.report("schema", f"is for format json; with {form} there is one column, `value`")
    malformed = table.choice("malformed", OnMalformed, OnMalformed.FAIL)
    dead_letter = table.text("dead-letter")
    _check_topic(table, "dead-letter", dead_letter or "")
    if (malformed is OnMalformed.DEAD_LETTER) != (dead_letter is not None):
        table.report("dead-letter", 'a topic goes with malformed = "dead-letter", and the other way round')
    made = SourceDefinition(
        name=name,
        topics=topics,
        pattern=pattern,
        starting=table.text("starting") or "earliest",
        format=form,
        schema=schema,
        malformed=malformed,
        dead_letter=dead_letter,
        watermark=_parse_watermark(table),
        options=table.settings("options"),
    )
    table.report_unknown_keys()
    return made


def _parse_watermark(source: TomlTable) -> Watermark | None:
    table = source.table("watermark")
    if table is None:
        return None
    made = Watermark(
        column=table.required_text("column", "the column with the time of the event"),
        delay=table.required_text("delay", "how late a row may come, like '10 minutes'"),
    )
    table.report_unknown_keys()
    return made


def _parse_lookup(name: str, table: TomlTable) -> Lookup:
    _check_name(table, "", name)
    made = Lookup(
        name=name,
        format=table.required_text("format", "one of Spark's: csv, json, parquet, jdbc, ..."),
        path=table.text("path"),
        schema=table.text("schema"),
        options=table.settings("options"),
    )
    table.report_unknown_keys()
    return made


def _parse_transform(table: TomlTable) -> Transform:
    made = Transform(
        name=_parse_name(table, "name", "the view's name for what comes after it"),
        sql=table.required_text("sql", "one SELECT over the views before it"),
    )
    table.report_unknown_keys()
    return made


def _parse_output(name: str, table: TomlTable) -> OutputDefinition:
    _check_name(table, "", name)
    sinks = tuple(_parse_sink(inner) for inner in table.table_list("sinks"))
    if not sinks and "sinks" not in table:
        table.report("sinks", f"is missing: [[{table.path}.sinks]] with topic = or table =")
    _check_tables(table, sinks)
    made = OutputDefinition(
        name=name,
        view=table.required_text("from", "the source or transform whose rows are written"),
        sinks=sinks,
        mode=table.choice("mode", OutputMode, OutputMode.APPEND),
    )
    table.report_unknown_keys()
    return made


def _check_tables(table: TomlTable, sinks: Iterable[SinkDefinition]) -> None:
    """Check that an output has no table twice, as rows are staged by table, and only one database."""
    tables = [sink for sink in sinks if isinstance(sink, TableSink) and sink.table]
    if len({sink.database for sink in tables}) > 1:
        table.report("sinks", "tables in two databases: one decision is one transaction of one database")
    names = [sink.table for sink in tables]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        table.report("sinks", f"the table {twice} is there twice")


def _parse_sink(table: TomlTable) -> SinkDefinition:
    if ("topic" in table) == ("table" in table):
        table.report("topic", "a sink has either topic = or table =")
    made = _parse_table_sink(table) if "table" in table and "topic" not in table else _parse_topic_sink(table)
    table.report_unknown_keys()
    return made


def _parse_topic_sink(table: TomlTable) -> TopicSink:
    topic = table.text("topic") or ""
    _check_topic(table, "topic", topic)
    return TopicSink(topic=topic, key=table.text("key"), value=table.text("value"))


def _parse_table_sink(table: TomlTable) -> TableSink:
    write, keys = table.choice("write", TableWrite, TableWrite.APPEND), table.texts("keys")
    if (write is TableWrite.UPSERT) != bool(keys):
        table.report("keys", 'the key columns go with write = "upsert", and the other way round')
    return TableSink(
        table=table.text("table") or "",
        database=table.required_text("database", "an SQLAlchemy URL, like postgresql+psycopg://host/name"),
        write=write,
        keys=keys,
    )
