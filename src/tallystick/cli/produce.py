"""`tallystick produce`: sends lines to a topic, like `kafka-console-producer.sh`, or as one transaction.

With --prepare-only the transaction is left in doubt and its state is printed: KIP-939 by hand, completed by
`tallystick transactions complete`.
"""

import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tallystick.admin.by_hand import check_unused
from tallystick.admin.client import Admin
from tallystick.cli.cluster_command import (
    BOOTSTRAP,
    COMMAND_CONFIG,
    Exit,
    complain,
    connection,
    run,
    settings_of,
)
from tallystick.cli.interrupts import hold, interruptible, stop_printing
from tallystick.cli.modes import ModeName, with_modes
from tallystick.cli.settings import named_pairs, named_values
from tallystick.client.blocking.line_io import Destination, Feed, send_as_one
from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.record_lines import BadLine, JsonForm, LineReader, Reads
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import frozen

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Format(StrEnum):
    """Format of a line."""

    STRING = "string"
    JSON = "json"


class Compression(StrEnum):
    """Compression of batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


_PROPERTIES: Final = ", ".join(name.replace("_", ".") for name in LineReader.__annotations__)
Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]


Splitting = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "--reader-property",
        metavar="NAME=VALUE",
        help=f"How a line is split, repeatable: {_PROPERTIES}.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "--producer-property",
        "--command-property",
        metavar="NAME=VALUE",
        help="A setting of the producer, repeatable, as in docs/config.md.",
    ),
]
TransactionalId = Annotated[
    str | None,
    typer.Option(help="All lines in one transaction under this id, committed at the end of the input."),
]


@app.command()
def produce(
    topic: Topic = None,
    *,
    bootstrap_server: Annotated[str | None, BOOTSTRAP] = None,
    command_config: Annotated[Path | None, COMMAND_CONFIG] = None,
    topic_option: Annotated[str | None, typer.Option("--topic", help="The same as TOPIC.")] = None,
    form: Annotated[
        Format, typer.Option("--format", help="What a line is. JSON is what `consume --output json` prints.")
    ] = Format.STRING,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A line is key, TEXT, value; the first TEXT counts.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="On every record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, max=INT32_MAX, help="For every record that names none itself.")
    ] = None,
    compression: Annotated[
        Compression | None, typer.Option("--compression", "--compression-codec", help="Of batches.")
    ] = None,
    sync: Annotated[bool, typer.Option("--sync", help="Wait for each record before the next.")] = False,
    reading: Splitting = None,
    setting: Settings = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="How long a record may take; instead of delivery.timeout.ms.")
    ] = None,
    transactional_id: TransactionalId = None,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Leave it in doubt, and print the state to store.")
    ] = False,
    mode: ModeName = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if that aborts what is open under the id.")
    ] = False,
) -> None:  # fmt: skip
    """Send the lines of stdin as records to TOPIC.

    With --transactional-id all of them are committed, or none: Ctrl-C, an invalid line and a record that
    cannot be written abort. Such a transaction must end within transaction.timeout.ms (--config), also while
    lines are typed, except in mode 2pc.
    """
    if (topic is None) == (topic_option is None):
        raise typer.BadParameter("give TOPIC, once")
    if (prepare_only or mode or force) and transactional_id is None:
        raise typer.BadParameter("--prepare-only, --mode and --force need --transactional-id")
    headers = named_pairs(header or (), "--header")
    to = Destination(
        topic=topic or topic_option or "",
        partition=partition,
        headers=tuple((name, value.encode()) for name, value in headers),
        sync=sync,
    )
    lines = _form(form, named_values(reading or (), "--property", strip=False), key_separator)
    config = connection(bootstrap_server, command_config)
    packed = {} if compression is None else {"compression.type": compression.value}
    config |= {**packed, **named_values(setting or (), "--config"), **_limits(timeout_ms)}
    if transactional_id is None:
        raise typer.Exit(_send(config, to, lines))
    config = {**with_modes(config, mode or (), prepare_only), "transactional.id": transactional_id}
    transaction = _Transaction(name=transactional_id, config=config, prepare=prepare_only, force=force)
    raise typer.Exit(_send_as_one(transaction, to, lines))


@frozen(kw_only=True)
class _Transaction:
    name: str
    config: dict[str, object]
    prepare: bool
    force: bool


def _form(form: Format, properties: dict[str, str], key_separator: str | None) -> Reads:
    if key_separator is not None:
        properties = {"parse.key": "true", "key.separator": key_separator, **properties}
    if form is Format.STRING:
        return LineReader.parse(properties)
    if properties:
        raise typer.BadParameter("--property and --key-separator are for --format string")
    return JsonForm()


def _limits(timeout_ms: int | None) -> dict[str, object]:
    if timeout_ms is None:
        return {}
    return {
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "request.timeout.ms": max(timeout_ms // 2, 1),
        "linger.ms": min(5, timeout_ms // 2),
    }


def _lines() -> Iterator[bytes]:
    """Yield the lines of stdin without their ends, with a prompt on a terminal."""
    typing = sys.stdin.isatty()
    while True:
        if typing:
            print(">", end="", flush=True, file=sys.stderr)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _send(config: dict[str, object], to: Destination, form: Reads) -> Exit:
    with Producer(config) as producer:
        feed = Feed(producer, to, form)
        code = Exit.DONE
        try:
            with interruptible():
                feed.send(_lines())
        except KeyboardInterrupt:
            code = Exit.INTERRUPTED
        except BadLine as exc:
            code = complain(f"line {feed.taken}: {exc}; the lines before it were sent", Exit.FAILED)
    return _failures(feed) or code


def _send_as_one(transaction: _Transaction, to: Destination, form: Reads) -> Exit:
    config, name = transaction.config, transaction.name
    with Producer(config) as producer:
        if not transaction.force:
            with Admin(settings_of("admin", config)) as admin:
                check_unused(admin, name)
        feed = Feed(producer, to, form)
        try:
            with interruptible():
                state = send_as_one(producer, feed, _lines(), prepare=transaction.prepare, hold=hold)
                if state is not None:
                    return _hand_over(producer, name, state, feed.taken)
        except KeyboardInterrupt:
            return complain("interrupted: the transaction was aborted", Exit.INTERRUPTED)
        except BadLine as exc:
            return complain(f"line {feed.taken}: {exc}; the transaction was aborted", Exit.FAILED)
        print(f"committed {feed.taken} records", file=sys.stderr)
        return Exit.DONE


def _hand_over(producer: Producer, name: str, state: PreparedTxnState, count: int) -> Exit:
    """Print the state; if that fails, abort, because the transaction could never be committed."""
    try:
        print(state, flush=True)
    except OSError as exc:
        stop_printing()
        producer.abort_transaction()
        return complain(f"the state could not be printed ({exc}): aborted", Exit.FAILED)
    if not state:
        print("nothing was sent, so nothing is prepared: the state is empty", file=sys.stderr)
        return Exit.DONE
    print(
        f"prepared {count} records, in doubt until a decision. To commit: store the line above together with "
        "your own data, then\n"
        f"  tallystick transactions complete {name} {state}\n"
        "With any other state, or an empty one, that aborts.",
        file=sys.stderr,
    )
    return Exit.DONE


def _failures(feed: Feed) -> Exit:
    for number, failure in feed.failures:
        complain(f"line {number}: {failure}", Exit.FAILED)
    if feed.failed > len(feed.failures):
        complain(f"{feed.failed} of {feed.taken} records were not written", Exit.FAILED)
    return Exit.FAILED if feed.failed else Exit.DONE


def main(words: Sequence[str]) -> int:
    """Run `tallystick produce WORDS` and return its exit code."""
    return run(app, "produce", words)
