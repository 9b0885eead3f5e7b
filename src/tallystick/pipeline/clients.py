"""Client settings derived from [kafka], and their validation before anything is started. Pure."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from tallystick.client.settings.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TableSink,
    TopicSink,
)
from tallystick.spark.options.format_options import REGISTRY_PREFIX, parse_format_options
from tallystick.spark.options.option_table import DECISIONS_TOPIC, QueryType
from tallystick.spark.options.sink_options import parse_sink_options
from tallystick.spark.options.source_options import parse_source_options

_AUTO_REGISTER: Final = "auto.register.schemas"
# Placeholder for the address of a broker that is not started yet.
_PLACEHOLDER_CLIENT: Final = {"bootstrap.servers": "localhost:9092"}


def settings_of_role(role: str, client: Mapping[str, str]) -> dict[str, str]:
    """Return [kafka] without settings that only other roles know: one table serves all roles."""
    others = {name for other in ROLE_SETTINGS.values() for name in other} - ROLE_SETTINGS[role].keys()
    return {name: text for name, text in client.items() if name not in others or name in CLIENT_SETTINGS}


def build_registry_options(registry: Mapping[str, str]) -> dict[str, str]:
    """Build the options of the schema registry, for a source or sink."""
    return {
        name if name == _AUTO_REGISTER else f"{REGISTRY_PREFIX}{name}": text
        for name, text in registry.items()
    }


def build_source_options(
    source: SourceDefinition, client: Mapping[str, str], registry: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Build the options of the `tallystick` source."""
    topics = (
        {"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}
    )
    settings = {f"kafka.{name}": text for name, text in settings_of_role("consumer", client).items()}
    formats: dict[str, str] = {}
    if (column_format := source.format.column_format) is not None:
        settings_of_registry = {n: t for n, t in registry.items() if n != _AUTO_REGISTER}
        dead_letter = source.malformed is OnMalformed.DEAD_LETTER
        formats = {
            "value.format": column_format.value,
            "onMalformed": "null" if dead_letter else "fail",
            **({} if source.schema is None else {"value.schema": source.schema}),
            **({} if source.message is None else {"value.message": source.message}),
            **build_registry_options(settings_of_registry),
        }
    return {**settings, **topics, "startingOffsets": source.starting, **formats, **source.options}


def build_sink_options(
    definition: Definition, output: OutputDefinition, client: Mapping[str, str]
) -> dict[str, str]:
    """Build the options of the `tallystick` sink from the definition."""
    return {
        **{f"kafka.{name}": text for name, text in settings_of_role("producer", client).items()},
        "transactional.id.prefix": definition.prefix_of(output),
        "tallystick.modes": ",".join(definition.modes),
    }


def check_definition(definition: Definition) -> None:
    """Validate a definition without a cluster or Spark. Raises: BadConfig with all problems."""
    problems = list_problems(definition)
    if problems:
        raise BadConfig("\n".join(problems))


def list_problems(definition: Definition) -> list[str]:
    """Return all problems of a definition, each with its key's path."""
    client = _PLACEHOLDER_CLIENT if definition.kafka is None else definition.kafka
    # A wrong setting of [kafka] is reported for every source or output: drop the duplicates.
    return list(dict.fromkeys(_find_problems(definition, client)))


def _find_problems(definition: Definition, client: Mapping[str, str]) -> Iterator[str]:
    if definition.kafka is None and definition.broker is None:
        yield "kafka: is missing, and so is broker: where are the topics?"
    for source in definition.sources:
        try:
            parse_source_options(
                build_source_options(source, client, definition.schema_registry), QueryType.STREAM
            )
        except BadConfig as exc:
            yield from _prefix_paths(str(exc), f"sources.{source.name}.options")
        if any(name.lower().startswith("key.") for name in source.options):
            yield f"sources.{source.name}.options: key.format: the key of a view is bytes, in column `_key`"
    yield from find_loops(definition)
    for i, transform in enumerate(definition.transforms):
        if (transform.sql is None) == (transform.function is None):
            yield f"transforms[{i}]: {transform.name} needs either sql or a function, and not both"
    for output in definition.outputs:
        try:
            parse_sink_options(build_sink_options(definition, output, client), QueryType.STREAM)
        except BadConfig as exc:
            yield from _prefix_paths(str(exc), f"outputs.{output.name}")
        yield from _find_format_problems(definition, output)
        databases = {sink.database for sink in output.sinks if isinstance(sink, TableSink)}
        if len(databases) > 1:
            yield f"outputs.{output.name}.sinks: tables in two databases; one decision is in one"


def _find_format_problems(definition: Definition, output: OutputDefinition) -> Iterator[str]:
    if any(isinstance(sink, TopicSink) and sink.has_schemas for sink in output.sinks):
        problems: list[str] = []
        options = {**build_registry_options(definition.schema_registry), "value.format": "avro"}
        parse_format_options(options, problems)
        yield from (f"schema-registry: {problem.removeprefix(REGISTRY_PREFIX)}" for problem in problems)


def _prefix_paths(problems: str, path: str) -> Iterator[str]:
    for problem in problems.splitlines():
        yield problem if problem.startswith("kafka.") else f"{path}: {problem}"


# A view that a SELECT reads, and not a column of its name.
_VIEW_READ: Final = re.compile(r"\b(?:from|join|table)\s+`?(\w+)", re.IGNORECASE)


def find_loops(definition: Definition) -> Iterator[str]:
    """Yield each source whose own records lead to records that it reads.

    A source may read what another one's output has written: that is a chain. The topics that a Python
    function reads are unknown and not checked.
    """
    written = {source.name: _list_written(definition, source) for source in definition.sources}
    for source in definition.sources:
        path = f"sources.{source.name}.{'topics' if source.pattern is None else 'pattern'}"
        reached, waiting = {source.name}, [source.name]
        while waiting:
            for topic in written[waiting.pop()]:
                if _reads(source, topic):
                    why = f"reads {topic}, which this pipeline writes from it, and would never end"
                    yield f"{path}: {why}{_advise(source)}"
                    reached, waiting = set(), []
                    break
                following = [
                    each.name
                    for each in definition.sources
                    if each.name not in reached and _reads(each, topic)
                ]
                reached.update(following)
                waiting += following


def _advise(source: SourceDefinition) -> str:
    return "" if source.pattern is None else ". A pattern like (?!__)(?!out\\.).* leaves topics out"


def _reads(source: SourceDefinition, topic: str) -> bool:
    if source.pattern is None:
        return topic in source.topics
    try:
        return re.fullmatch(source.pattern, topic) is not None
    except re.error:
        return False  # told with the source's options


def _list_written(definition: Definition, source: SourceDefinition) -> list[str]:
    """Return the topics that get records because this source has some."""
    outputs = [output for output in definition.outputs if _reads_source(definition, output, source)]
    topics = [sink.topic for output in outputs for sink in output.sinks if isinstance(sink, TopicSink)]
    if source.malformed is OnMalformed.DEAD_LETTER and source.dead_letter is not None:
        topics.append(source.dead_letter)
    return [*topics, *[DECISIONS_TOPIC] * bool(outputs)]


def _reads_source(definition: Definition, output: OutputDefinition, source: SourceDefinition) -> bool:
    views = {output.view.lower()}
    for transform in reversed(definition.transforms):
        if transform.name.lower() in views and transform.sql is not None:
            views |= {name.lower() for name in _VIEW_READ.findall(transform.sql)}
    return source.name.lower() in views
