"""Plain-text plan of a pipeline: inputs, views, outputs, guarantees and their limits. Pure."""

from collections.abc import Iterable, Iterator
from typing import Final

from tallystick.client.transactions.modes import Mode, NoPossibleMode, list_modes
from tallystick.pipeline.definition import (
    Definition,
    OnMalformed,
    OutputDefinition,
    SinkDefinition,
    SourceDefinition,
    TopicFormat,
    TopicSink,
    checkpoint_location,
)

_GUARANTEED: Final = (
    "Each batch of an output is one decision: readers of committed records get all of it or nothing.",
    "A decided batch that comes again is dropped if it has the same rows, and else stops the query.",
    "State, source offsets and decisions agree after every restart on the same checkpoint.",
)
_NOT_GUARANTEED: Final = (
    "Readers with isolation.level=read_uncommitted see records before they are decided.",
    "Partitions show a decided batch one after the other, not in one instant, and wait while it is open.",
    "Two outputs are two decisions: one may be a batch ahead of the other.",
)

Section = tuple[str, list[str]]


def explain(definition: Definition, in_force: Mode | NoPossibleMode | None) -> list[Section]:
    """Return the sections of the plan, each with its lines.

    Args:
        in_force: mode that the cluster offers among those requested; None if it was not queried.
    """
    modes = list_modes(definition.modes)
    foreseen = [in_force] if isinstance(in_force, Mode) else modes
    return [
        (f"Pipeline {definition.name}", list(_cluster_lines(definition))),
        ("Reads", [_source_line(source) for source in definition.sources]),
        ("Views", list(_view_lines(definition))),
        ("Writes", [line for output in definition.outputs for line in _output_lines(definition, output)]),
        ("Mode", list(_mode_lines(modes, in_force))),
        ("Guaranteed", [*_GUARANTEED]),
        ("Not guaranteed", [*_weaker_guarantees(foreseen), *_NOT_GUARANTEED]),
    ]


def _cluster_lines(definition: Definition) -> Iterator[str]:
    if definition.kafka is not None:
        yield f"on the brokers {definition.kafka['bootstrap.servers']}"
    elif definition.broker is not None:
        yield (
            f"on a broker of its own, with its files in {definition.broker.data_dir}; it answers when "
            "records are on the disk (flush.policy=ack)"
        )
    yield f"checkpoint in {definition.checkpoint}"
    yield (
        f"a batch every {definition.trigger}"
        if definition.trigger
        else "a batch as soon as there is something"
    )
    yield f"Spark on {definition.spark.get('spark.master', 'local[*]')}"


def _source_line(source: SourceDefinition) -> str:
    topics = f"topics like {source.pattern}" if source.pattern else f"topic {', '.join(source.topics)}"
    malformed = ""
    if source.malformed is OnMalformed.DEAD_LETTER:
        malformed = f"; what does not fit the schema goes to {source.dead_letter}, in the same decision"
    elif source.schema is not None or source.format.column_format is not None:
        malformed = "; a value that does not fit the schema stops the query"
    watermark_text = ""
    if source.watermark is not None:
        watermark_text = f"; rows may be {source.watermark.delay} late by {source.watermark.column}"
    origin = f"{topics} as {source.format}, from {source.starting}, committed records"
    return f"{source.name}: {origin}{malformed}{watermark_text}"


def _view_lines(definition: Definition) -> Iterator[str]:
    for lookup in definition.lookups:
        yield f"{lookup.name}: {lookup.format} {lookup.path or ''}".rstrip()
    for transform in definition.transforms:
        body = "a function" if transform.sql is None else " ".join(transform.sql.split())
        yield f"{transform.name}: {body}"


def _output_lines(definition: Definition, output: OutputDefinition) -> Iterator[str]:
    sinks = " and ".join(_sink_text(sink) for sink in output.sinks)
    yield f"{output.name}: rows of {output.view} ({output.mode}) into {sinks}"
    yield (
        f"  transactional ids {definition.prefix_of(output)}/..., "
        f"checkpoint {checkpoint_location(definition, output)}"
    )


def _sink_text(sink: SinkDefinition) -> str:
    if isinstance(sink, TopicSink):
        key = "no key" if sink.key is None else f"key {sink.key}"
        whole_row = "the row as JSON" if sink.format is TopicFormat.PLAIN else "the row"
        key += "" if sink.key_format is TopicFormat.PLAIN else f" as {sink.key_format}"
        encoding = "" if sink.format is TopicFormat.PLAIN else f" as {sink.format}"
        return f"topic {sink.topic} ({key}, value {sink.value or whole_row}{encoding})"
    return f"table {sink.table} ({sink.write})"


def _mode_lines(modes: Iterable[Mode], in_force: Mode | NoPossibleMode | None) -> Iterator[str]:
    yield f"asked for, strongest first: {', '.join(mode.value for mode in modes)}"
    match in_force:
        case Mode():
            yield (
                f"in force here: {in_force.value}; the cluster may still refuse it to this user, which each "
                "query finds out when it starts"
            )
        case NoPossibleMode():
            yield f"none is possible on this cluster: {in_force}"
        case None:
            yield "in force: the cluster was not asked"


def _weaker_guarantees(modes: Iterable[Mode]) -> Iterator[str]:
    for mode in modes:
        if mode.not_promised:
            yield f"In mode {mode.value}, {mode.not_promised}: a decided batch may then be lost in part."
