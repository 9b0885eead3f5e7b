"""Client settings derived from [kafka], and their validation before anything is started. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.client.config import CLIENT_SETTINGS, ROLE_SETTINGS
from tallystick.kernel.settings import BadConfig
from tallystick.pipeline.definition import Definition, Output, Source, TableSink
from tallystick.spark.options.option_table import Query
from tallystick.spark.options.sink_options import write_options
from tallystick.spark.options.source_options import read_options

# Placeholder for the address of a broker that is not started yet.
_SOMEWHERE: Final = {"bootstrap.servers": "localhost:9092"}


def of_role(role: str, client: Mapping[str, str]) -> dict[str, str]:
    """Return [kafka] without settings that only other roles know: one table serves all roles."""
    others = {name for other in ROLE_SETTINGS.values() for name in other} - ROLE_SETTINGS[role].keys()
    return {name: text for name, text in client.items() if name not in others or name in CLIENT_SETTINGS}


def source_options(source: Source, client: Mapping[str, str]) -> dict[str, str]:
    """Build the options of the `tallystick` source."""
    which = {"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}
    named = {f"kafka.{name}": text for name, text in of_role("consumer", client).items()}
    return {**named, **which, "startingOffsets": source.starting, **source.options}


def sink_options(definition: Definition, output: Output, client: Mapping[str, str]) -> dict[str, str]:
    """Build the options of the `tallystick` sink from the definition."""
    return {
        **{f"kafka.{name}": text for name, text in of_role("producer", client).items()},
        "transactional.id.prefix": definition.prefix(output),
        "tallystick.modes": ",".join(definition.modes),
    }


def check(definition: Definition) -> None:
    """Validate a definition without a cluster or Spark. Raises: BadConfig with all problems."""
    client = _SOMEWHERE if definition.kafka is None else definition.kafka
    found = [*_problems(definition, client)]
    if found:
        # A wrong setting of [kafka] is reported for every source or output: drop the duplicates.
        raise BadConfig("\n".join(dict.fromkeys(found)))


def _problems(definition: Definition, client: Mapping[str, str]) -> Iterator[str]:
    if definition.kafka is None and definition.broker is None:
        yield "kafka: is missing, and so is broker: where are the topics?"
    for source in definition.sources:
        try:
            read_options(source_options(source, client), Query.STREAM)
        except BadConfig as exc:
            yield from _placed(str(exc), f"sources.{source.name}.options")
    for i, transform in enumerate(definition.transforms):
        if (transform.sql is None) == (transform.function is None):
            yield f"transforms[{i}]: {transform.name} is made by either sql or a function"
    for output in definition.outputs:
        try:
            write_options(sink_options(definition, output, client), Query.STREAM)
        except BadConfig as exc:
            yield from _placed(str(exc), f"outputs.{output.name}")
        databases = {sink.database for sink in output.sinks if isinstance(sink, TableSink)}
        if len(databases) > 1:
            yield f"outputs.{output.name}.sinks: tables in two databases; one decision is in one"


def _placed(problems: str, path: str) -> Iterator[str]:
    for problem in problems.splitlines():
        yield problem if problem.startswith("kafka.") else f"{path}: {problem}"
