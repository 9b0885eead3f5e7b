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
    Broker,
    Definition,
    Lookup,
    OnMalformed,
    Output,
    OutputMode,
    Sink,
    Source,
    TableSink,
    TableWrite,
    TopicSink,
    Transform,
    ValueFormat,
    Watermark,
)
from tallystick.pipeline.toml_reader import Problems, Table

# A name is a view in SQL and part of a transactional id.
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}", re.ASCII)
_VARIABLE: Final = re.compile(r"\$(?:\$|\{([^}]*)\})")
_AVAILABLE_NOW: Final = "available-now"


def parse(text: str, source: str, variables: Mapping[str, str] | None = None) -> Definition:
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
    filled = _filled(document, "", dict(variables or {}), problems)
    assert isinstance(filled, dict)
    definition = _definition(Table(filled, "", problems))
    problems.check()
    return definition


def _filled(value: object, path: str, variables: Mapping[str, str], problems: Problems) -> object:
    """Substitute variables in `value`, recursively."""
    match value:
        case dict():
            inner = f"{path}." if path else ""
            return {key: _filled(x, f"{inner}{key}", variables, problems) for key, x in value.items()}
        case list():
            return [_filled(x, f"{path}[{i}]", variables, problems) for i, x in enumerate(value)]
        case str():
            unset = [n for n in _VARIABLE.findall(value) if n and n not in variables]
            for name in unset:
                problems.add(path, f"the variable {name} is not set")
            return value if unset else _VARIABLE.sub(lambda m: variables[m[1]] if m[1] else "$", value)
        case _:
            return value


def _definition(top: Table) -> Definition:
    name = _name(top, "name", "it names the query and its transactional ids")
    checkpoint = top.needed("checkpoint", "the directory where Spark keeps how far it has read")
    sources = tuple(_source(name, table) for name, table in top.named("sources"))
    lookups = tuple(_lookup(name, table) for name, table in top.named("lookups"))
    transforms = tuple(_transform(table) for table in top.listed("transforms"))
    outputs = tuple(_output(name, table) for name, table in top.named("outputs"))
    kafka, broker = _where(top)
    made = Definition(
        name=name,
        checkpoint=checkpoint,
        sources=sources,
        lookups=lookups,
        transforms=transforms,
        outputs=outputs,
        trigger=_trigger(top),
        modes=_modes(top),
        kafka=kafka,
        broker=broker,
        spark=top.settings("spark"),
    )
    top.rest_is_unknown()
    _across(top, made)
    return made


def _across(top: Table, made: Definition) -> None:
    """Check references and names across the parts of the definition."""
    if not made.sources and "sources" not in top:
        top.wrong("sources", "is missing: a pipeline reads at least one, [sources.NAME]")
    if not made.outputs and "outputs" not in top:
        top.wrong("outputs", "is missing: a pipeline writes at least one, [outputs.NAME]")
    transforms = [transform.name for transform in made.transforms]
    views = [source.name for source in made.sources] + [lookup.name for lookup in made.lookups]
    names = [name for name in views + transforms if name]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        top.wrong("transforms" if twice in transforms else "lookups", f"two views are named {twice}")
    for output in made.outputs:
        if output.view and output.view not in names:
            known = ", ".join(names) or "none"
            top.problems.add(
                f"outputs.{output.name}.from", f"there is no view {output.view!r}; there are: {known}"
            )


def _name(table: Table, key: str, what: str) -> str:
    name = table.needed(key, what)
    if name:
        _check_name(table, key, name)
    return name


def _check_name(table: Table, key: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        table.wrong(key, f"{name!r} is not a name: letters, digits and _, at most 100, no digit first")


def _topic(table: Table, key: str, name: str) -> None:
    if name and not is_topic_name(name):
        table.wrong(key, f"{name!r} is not a topic's name: 1 to 249 of letters, digits, '.', '_' and '-'")


def _trigger(top: Table) -> str | None:
    trigger = top.text("trigger")
    if trigger == _AVAILABLE_NOW:
        top.wrong(
            "trigger",
            "is an interval, like '5 seconds'; `tallystick run --once` reads what is there and ends",
        )
    return trigger


def _modes(top: Table) -> tuple[str, ...]:
    modes = top.texts("modes") or (Mode.TWO_PHASE.value,)
    known = [mode.value for mode in Mode]
    for mode in modes:
        if mode not in known:
            top.wrong("modes", f"{mode!r} is not one of {', '.join(known)}")
    return modes


def _where(top: Table) -> tuple[Mapping[str, str] | None, Broker | None]:
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
            top.wrong("broker", "is for a pipeline without [kafka]: which of the two shall it be?")
        return settings, None
    table = top.table("broker")
    if table is None:
        return None, Broker(data_dir="data")
    broker = Broker(
        data_dir=table.needed("data-dir", "the directory of the broker's files"),
        listen=table.text("listen"),
        settings=table.settings("settings"),
    )
    table.rest_is_unknown()
    return None, broker


def _source(name: str, table: Table) -> Source:
    _check_name(table, "", name)
    topics, pattern = table.texts("topics"), table.text("pattern")
    for topic in topics:
        _topic(table, "topics", topic)
    if bool(topics) == bool(pattern):
        table.wrong("topics", 'give either topics = ["..."] or pattern = "..."')
    form = table.choice("format", ValueFormat, ValueFormat.JSON)
    schema = table.text("schema")
    if form is ValueFormat.JSON and schema is None and "schema" not in table:
        table.wrong("schema", 'is missing: the fields of the JSON, like "id BIGINT, what STRING"')
    if form is not ValueFormat.JSON and schema is not None:
        table.wrong("schema", f"is for format json; with {form} there is one column, `value`")
    malformed = table.choice("malformed", OnMalformed, OnMalformed.FAIL)
    dead_letter = table.text("dead-letter")
    _topic(table, "dead-letter", dead_letter or "")
    if (malformed is OnMalformed.DEAD_LETTER) != (dead_letter is not None):
        table.wrong("dead-letter", 'a topic goes with malformed = "dead-letter", and the other way round')
    made = Source(
        name=name,
        topics=topics,
        pattern=pattern,
        starting=table.text("starting") or "earliest",
        format=form,
        schema=schema,
        malformed=malformed,
        dead_letter=dead_letter,
        watermark=_watermark(table),
        options=table.settings("options"),
    )
    table.rest_is_unknown()
    return made


def _watermark(source: Table) -> Watermark | None:
    table = source.table("watermark")
    if table is None:
        return None
    made = Watermark(
        column=table.needed("column", "the column with the time of the event"),
        delay=table.needed("delay", "how late a row may come, like '10 minutes'"),
    )
    table.rest_is_unknown()
    return made


def _lookup(name: str, table: Table) -> Lookup:
    _check_name(table, "", name)
    made = Lookup(
        name=name,
        format=table.needed("format", "one of Spark's: csv, json, parquet, jdbc, ..."),
        path=table.text("path"),
        schema=table.text("schema"),
        options=table.settings("options"),
    )
    table.rest_is_unknown()
    return made


def _transform(table: Table) -> Transform:
    made = Transform(
        name=_name(table, "name", "the view's name for what comes after it"),
        sql=table.needed("sql", "one SELECT over the views before it"),
    )
    table.rest_is_unknown()
    return made


def _output(name: str, table: Table) -> Output:
    _check_name(table, "", name)
    sinks = tuple(_sink(inner) for inner in table.listed("sinks"))
    if not sinks and "sinks" not in table:
        table.wrong("sinks", f"is missing: [[{table.path}.sinks]] with topic = or table =")
    _once(table, sinks)
    made = Output(
        name=name,
        view=table.needed("from", "the source or transform whose rows are written"),
        sinks=sinks,
        mode=table.choice("mode", OutputMode, OutputMode.APPEND),
    )
    table.rest_is_unknown()
    return made


def _once(table: Table, sinks: Iterable[Sink]) -> None:
    """Check that an output has no table twice, as rows are staged by table, and only one database."""
    tables = [sink for sink in sinks if isinstance(sink, TableSink) and sink.table]
    if len({sink.database for sink in tables}) > 1:
        table.wrong("sinks", "tables in two databases: one decision is one transaction of one database")
    names = [sink.table for sink in tables]
    for twice in sorted({name for name in names if names.count(name) > 1}):
        table.wrong("sinks", f"the table {twice} is there twice")


def _sink(table: Table) -> Sink:
    if ("topic" in table) == ("table" in table):
        table.wrong("topic", "a sink has either topic = or table =")
    made = _table_sink(table) if "table" in table and "topic" not in table else _topic_sink(table)
    table.rest_is_unknown()
    return made


def _topic_sink(table: Table) -> TopicSink:
    topic = table.text("topic") or ""
    _topic(table, "topic", topic)
    return TopicSink(topic=topic, key=table.text("key"), value=table.text("value"))


def _table_sink(table: Table) -> TableSink:
    write, keys = table.choice("write", TableWrite, TableWrite.APPEND), table.texts("keys")
    if (write is TableWrite.UPSERT) != bool(keys):
        table.wrong("keys", 'the key columns go with write = "upsert", and the other way round')
    return TableSink(
        table=table.text("table") or "",
        database=table.needed("database", "an SQLAlchemy URL, like postgresql+psycopg://host/name"),
        write=write,
        keys=keys,
    )
