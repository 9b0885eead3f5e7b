"""`tallystick consume`: prints the records of topics as lines, like `kafka-console-consumer.sh`."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tallystick.admin.client import Admin
from tallystick.admin.start_offsets import (
    FROM_BEGINNING,
    FROM_END,
    AtOffset,
    AtTime,
    Start,
    first_offsets,
    partitions_of,
)
from tallystick.cli.cluster_command import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Exit,
    complain,
    connection,
    run,
    settings_of,
)
from tallystick.cli.interrupts import interruptible, stop_printing
from tallystick.cli.settings import named_values, time_ms
from tallystick.client.blocking.consumer import Consumer
from tallystick.client.blocking.line_io import Until, Written, read_until
from tallystick.client.blocking.record_lines import JsonForm, LineWriter, Prints
from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.value import frozen

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_PROPERTIES: Final = ", ".join(name.replace("_", ".") for name in LineWriter.__annotations__)


class Isolation(StrEnum):
    """Isolation level of the consumer."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


class Shape(StrEnum):
    """Format of a line."""

    TEXT = "text"
    JSON = "json"


Showing = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--formatter-property",
        metavar="NAME=VALUE",
        help=f"What a line shows, repeatable: {_PROPERTIES}.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "--consumer-property",
        "--command-property",
        metavar="NAME=VALUE",
        help="A setting of the consumer, repeatable, as in docs/config.md.",
    ),
]


@app.command()
def consume(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", show_default=False)] = None,
    *,
    bootstrap_server: Annotated[str | None, BOOTSTRAP] = None,
    command_config: Annotated[Path | None, COMMAND_CONFIG] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="The same as TOPIC; repeatable.")] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record; of a group, where it has none.")
    ] = False,
    partition: Annotated[list[int] | None, typer.Option(min=0, help="Only this one; repeatable.")] = None,
    offset: Annotated[
        str | None, typer.Option(metavar="N|earliest|latest", help="Where to begin in every partition.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin with records of 2026-11-21T12:00:00Z, or of ms since 1970."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Share them in a group, and commit.")] = None,
    isolation: Annotated[
        Isolation | None,
        typer.Option("--isolation-level", help="read_committed leaves out what is open or aborted."),
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="End when nothing has come for so long.")
    ] = None,
    output: Annotated[Shape, typer.Option("--output", help="json shows and keeps everything.")] = Shape.TEXT,
    show: Showing = None,
    setting: Settings = None,
) -> None:  # fmt: skip
    """Print the records of topics until Ctrl-C, by default from the end on.

    Exit code 4 when --timeout-ms ended it before --max-messages.
    """
    names = [*(topics or ()), *(topic or ())]
    if not names:
        raise typer.BadParameter("give a TOPIC")
    places = (partition, offset, timestamp, from_beginning or None)
    if group is not None and places[:3] != (None, None, None):
        raise typer.BadParameter("--partition, --offset and --timestamp are for reading without --group")
    if sum(place is not None for place in places[1:]) > 1:
        raise typer.BadParameter("give one of --offset, --timestamp and --from-beginning")
    config = connection(bootstrap_server, command_config) | named_values(setting or (), "--config")
    if isolation is not None:
        config["isolation.level"] = isolation.value
    if group is not None:
        config |= {"group.id": group, "auto.offset.reset": "earliest" if from_beginning else "latest"}
    reading = _Reading(
        config=config,
        topics=tuple(dict.fromkeys(names)),
        partitions=tuple(partition or ()),
        start=FROM_BEGINNING if from_beginning else _start(offset, timestamp),
        until=Until(records=max_messages, idle_s=None if timeout_ms is None else timeout_ms / 1000),
    )
    form = _form(output, named_values(show or (), "--property", strip=False))
    raise typer.Exit(_read(reading, form))


@frozen(kw_only=True)
class _Reading:
    config: dict[str, object]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    start: Start
    until: Until


def _start(offset: str | None, timestamp: str | None) -> Start:
    if timestamp is not None:
        return AtTime(time_ms(timestamp, "--timestamp"))
    match offset:
        case None | "latest":
            return FROM_END
        case "earliest":
            return FROM_BEGINNING
    if not (offset.isascii() and offset.isdecimal() and int(offset) <= INT64_MAX):
        raise typer.BadParameter(f"--offset {offset}: is not an offset, earliest or latest")
    return AtOffset(int(offset))


def _form(output: Shape, properties: dict[str, str]) -> Prints:
    if output is Shape.TEXT:
        return LineWriter.parse(properties)
    if properties:
        raise typer.BadParameter("--property is for --output text")
    return JsonForm()


def _read(reading: _Reading, form: Prints) -> Exit:
    count = 0
    own = {**settings_of("consumer", reading.config), "enable.auto.commit": "false"}
    commits = str(reading.config.get("enable.auto.commit")).lower() != "false"
    with Consumer(own) as consumer:
        written = Written(consumer, commits="group.id" in own and commits)
        try:
            with interruptible():
                _begin(consumer, reading, written)
                for records in read_until(consumer, reading.until):
                    sys.stdout.buffer.write(b"".join(map(form.format, records)))
                    sys.stdout.buffer.flush()
                    written.wrote(records)
                    count += len(records)
        except KeyboardInterrupt:
            pass
        except OSError as exc:
            stop_printing()
            if not isinstance(exc, BrokenPipeError):
                raise
        written.commit()
    most = reading.until.records
    if reading.until.idle_s is not None and most is not None and count < most:
        return complain(f"{count} of {most} records came before --timeout-ms", Exit.INCOMPLETE)
    return Exit.DONE


def _begin(consumer: Consumer, reading: _Reading, written: Written) -> None:
    """Subscribe or assign; an unknown topic is an error, instead of a wait for its creation."""
    config = reading.config
    with Admin(settings_of("admin", config)) as admin:
        partitions = partitions_of(admin, reading.topics, reading.partitions)
        if "group.id" in config:
            consumer.subscribe(reading.topics, written)
            return
        read_committed = config.get("isolation.level") == Isolation.COMMITTED
        offsets = first_offsets(admin, partitions, reading.start, read_committed=read_committed)
    consumer.assign(partitions)
    for at, offset in offsets.items():
        consumer.seek(at, offset)


def main(words: Sequence[str]) -> int:
    """Run `tallystick consume WORDS` and return its exit code."""
    return run(app, "consume", words)
