"""`tallystick consume`: prints the records of topics as lines of text or JSON."""

import sys
from enum import StrEnum
from typing import Annotated

import typer

from tallystick.admin.client import Admin
from tallystick.admin.start_offsets import (
    FROM_BEGINNING,
    FROM_END,
    AtOffset,
    AtTimestamp,
    StartSpec,
    find_start_offsets,
    list_partitions,
)
from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
    check_hosts,
)
from tallystick.cli.exits import ExitCode, interruptible, print_error, silence_stdout
from tallystick.cli.settings import parse_named_values, parse_time_ms
from tallystick.cli.subjects import merge_names
from tallystick.client.blocking.consumer import Consumer
from tallystick.client.blocking.line_io import ReadLimit, WrittenOffsetCommitter, poll_until
from tallystick.client.blocking.record_lines import JsonLines, LineFormat, RecordLines, TextLines
from tallystick.kernel.ids import INT64_MAX
from tallystick.kernel.value import Value

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class IsolationOption(StrEnum):
    """Isolation level of the consumer."""

    UNCOMMITTED = "read_uncommitted"
    COMMITTED = "read_committed"


ConsumerProperties = Annotated[
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
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", show_default=False)] = None,
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
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
        IsolationOption | None,
        typer.Option("--isolation-level", help="read_committed leaves out what is open or aborted."),
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="End when nothing has arrived for this long.")
    ] = None,
    output: Annotated[
        LineFormat, typer.Option("--output", help="text is the values; json shows and keeps everything.")
    ] = LineFormat.TEXT,
    setting: ConsumerProperties = None,
) -> None:  # fmt: skip
    """Print the records of topics until Ctrl-C, by default from the end on.

    Exit code 4 when --timeout-ms ended it before --max-messages.
    """
    names = merge_names(context, topics, topic, "TOPIC")
    places = (partition, offset, timestamp, from_beginning or None)
    if group is not None and places[:3] != (None, None, None):
        raise typer.BadParameter("--partition, --offset and --timestamp cannot be combined with --group")
    if sum(place is not None for place in places[1:]) > 1:
        raise typer.BadParameter("give one of --offset, --timestamp and --from-beginning")
    config = build_config(
        ClusterOptions(bootstrap_server, command_config, profile),
        parse_named_values(setting or (), "--config"),
    )
    check_hosts(config)
    if isolation is not None:
        config["isolation.level"] = isolation.value
    if group is not None:
        config |= {"group.id": group, "auto.offset.reset": "earliest" if from_beginning else "latest"}
    reading = _ConsumeOptions(
        config=config,
        topics=tuple(names),
        partitions=tuple(partition or ()),
        start=FROM_BEGINNING if from_beginning else _parse_start(offset, timestamp),
        until=ReadLimit(
            max_records=max_messages, idle_timeout_s=None if timeout_ms is None else timeout_ms / 1000
        ),
    )
    raise typer.Exit(_print_records(reading, JsonLines() if output is LineFormat.JSON else TextLines()))


class _ConsumeOptions(Value, kw_only=True):
    config: dict[str, object]
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    start: StartSpec
    until: ReadLimit


def _parse_start(offset: str | None, timestamp: str | None) -> StartSpec:
    if timestamp is not None:
        return AtTimestamp(parse_time_ms(timestamp, "--timestamp"))
    match offset:
        case None | "latest":
            return FROM_END
        case "earliest":
            return FROM_BEGINNING
    if not (offset.isascii() and offset.isdecimal() and int(offset) <= INT64_MAX):
        raise typer.BadParameter(f"--offset {offset}: is not an offset, earliest or latest")
    return AtOffset(int(offset))


def _print_records(reading: _ConsumeOptions, form: RecordLines) -> ExitCode:
    count = 0
    own = {**select_role_settings("consumer", reading.config), "enable.auto.commit": "false"}
    commits = str(reading.config.get("enable.auto.commit")).lower() != "false"
    with Consumer(own) as consumer:
        committer = WrittenOffsetCommitter(consumer, commits="group.id" in own and commits)
        try:
            with interruptible():
                _start_reading(consumer, reading, committer)
                for records in poll_until(consumer, reading.until):
                    sys.stdout.buffer.write(b"".join(map(form.format, records)))
                    sys.stdout.buffer.flush()
                    committer.note_written(records)
                    count += len(records)
        except KeyboardInterrupt:
            pass
        except OSError as exc:
            silence_stdout()
            if not isinstance(exc, BrokenPipeError):
                raise
        committer.commit()
    most = reading.until.max_records
    if reading.until.idle_timeout_s is not None and most is not None and count < most:
        return print_error(f"{count} of {most} records came before --timeout-ms", ExitCode.INCOMPLETE)
    return ExitCode.DONE


def _start_reading(consumer: Consumer, reading: _ConsumeOptions, committer: WrittenOffsetCommitter) -> None:
    """Subscribe or assign; an unknown topic is an error, instead of a wait for its creation."""
    config = reading.config
    with Admin(select_role_settings("admin", config)) as admin:
        partitions = list_partitions(admin, reading.topics, reading.partitions)
        if "group.id" in config:
            consumer.subscribe(reading.topics, committer)
            return
        read_committed = config.get("isolation.level") == IsolationOption.COMMITTED
        offsets = find_start_offsets(admin, partitions, reading.start, read_committed=read_committed)
    consumer.assign(partitions)
    for at, offset in offsets.items():
        consumer.seek(at, offset)
