"""Pipelines that read what they write, which never come to an end. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SourceDefinition,
    TopicSink,
)
from tallystick.spark.options.option_table import DECISIONS_TOPIC

# A view that a SELECT reads, and not a column of its name.
_VIEW_READ: Final = re.compile(r"\b(?:from|join|table)\s+`?(\w+)", re.IGNORECASE)


def find_loops(definition: Definition) -> Iterator[str]:
    """Yield each source whose own records lead to records that it reads.

    A source may read what another one's output has written: that is a chain. What a Python function reads is
    not known, and not looked at.
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
