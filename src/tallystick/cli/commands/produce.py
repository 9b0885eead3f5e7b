"""`tallystick produce`: sends lines of text or JSON to a topic, one by one or as one transaction.

With --prepare-only the transaction is left in doubt and its state is printed: KIP-939 by hand, completed by
`tallystick transactions complete`.
"""

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from tallystick.admin.client import Admin
from tallystick.admin.txn.completion import check_unused
from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
    check_hosts,
)
from tallystick.cli.exits import ExitCode, ignore_interrupts, interruptible, print_error, silence_stdout
from tallystick.cli.settings import ModeOption, add_modes, parse_named_pairs, parse_named_values
from tallystick.cli.subjects import choose_name
from tallystick.client.blocking.line_io import Destination, LineSender, send_in_transaction
from tallystick.client.blocking.producer import Producer
from tallystick.client.blocking.record_lines import BadLine, JsonLines, LineFormat, RecordLines, TextLines
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Compression(StrEnum):
    """Compression of batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]


ProducerProperties = Annotated[
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
    context: typer.Context,
    topic: Topic = None,
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    topic_option: Annotated[str | None, typer.Option("--topic", help="The same as TOPIC.")] = None,
    form: Annotated[
        LineFormat, typer.Option("--format", help="Line format; json is that of `consume --output json`.")
    ] = LineFormat.TEXT,
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
    setting: ProducerProperties = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="How long a record may take; instead of delivery.timeout.ms.")
    ] = None,
    transactional_id: TransactionalId = None,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Leave it in doubt, and print the state to store.")
    ] = False,
    mode: ModeOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Even if that aborts what is open under the id.")
    ] = False,
) -> None:  # fmt: skip
    """Send the lines of stdin as records to TOPIC.

    With --transactional-id all of them are committed, or none: Ctrl-C, an invalid line and a record that
    cannot be written abort. Such a transaction must end within transaction.timeout.ms (--config), also while
    lines are typed, except in mode 2pc.
    """
    if (prepare_only or mode or force) and transactional_id is None:
        raise typer.BadParameter("--prepare-only, --mode and --force need --transactional-id")
    headers = parse_named_pairs(header or (), "--header")
    to = Destination(
        topic=choose_name(context, topic, topic_option, "TOPIC"),
        partition=partition,
        headers=tuple((name, value.encode()) for name, value in headers),
        sync=sync,
    )
    if key_separator is not None and (form is LineFormat.JSON or not key_separator):
        raise typer.BadParameter("--key-separator needs --format text, and a text that is not empty")
    lines = JsonLines() if form is LineFormat.JSON else TextLines(key_separator)
    packed = {} if compression is None else {"compression.type": compression.value}
    own = packed | parse_named_values(setting or (), "--config") | _timeout_settings(timeout_ms)
    shared = build_config(ClusterOptions(bootstrap_server, command_config, profile), own)
    check_hosts(shared)
    config = select_role_settings("producer", shared) | own
    if transactional_id is None:
        raise typer.Exit(_send_lines(config, to, lines))
    config = {**add_modes(config, mode or (), prepare_only), "transactional.id": transactional_id}
    admin = select_role_settings("admin", shared)
    transaction = _TransactionOptions(config=config, admin=admin, prepare=prepare_only, force=force)
    raise typer.Exit(_send_in_transaction(transaction, to, lines))


class _TransactionOptions(Value, kw_only=True):
    config: dict[str, object]
    admin: dict[str, object]
    prepare: bool
    force: bool


def _timeout_settings(timeout_ms: int | None) -> dict[str, str]:
    if timeout_ms is None:
        return {}
    limits_ms = {
        "max.block.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "request.timeout.ms": max(timeout_ms // 2, 1),
        "linger.ms": min(5, timeout_ms // 2),
    }
    return {name: str(limit_ms) for name, limit_ms in limits_ms.items()}


def _read_lines() -> Iterator[bytes]:
    """Yield the lines of stdin without their ends, with a prompt on a terminal."""
    typing = sys.stdin.isatty()
    while True:
        if typing:
            print(">", end="", flush=True, file=sys.stderr)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _send_lines(config: dict[str, object], to: Destination, form: RecordLines) -> ExitCode:
    with Producer(config) as producer:
        feed = LineSender(producer, to, form)
        code = ExitCode.DONE
        try:
            with interruptible():
                feed.send(_read_lines())
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
        except BadLine as exc:
            code = print_error(
                f"line {feed.line_count}: {exc}; the lines before it were sent", ExitCode.FAILED
            )
    return _report_failed_lines(feed) or code


def _send_in_transaction(transaction: _TransactionOptions, to: Destination, form: RecordLines) -> ExitCode:
    config, name = transaction.config, str(transaction.config["transactional.id"])
    with Producer(config) as producer:
        if not transaction.force:
            with Admin(transaction.admin) as admin:
                check_unused(admin, name)
        feed = LineSender(producer, to, form)
        try:
            with interruptible():
                state = send_in_transaction(
                    producer, feed, _read_lines(), prepare=transaction.prepare, hold=ignore_interrupts
                )
                if state is not None:
                    return _print_prepared_state(producer, name, state, feed.line_count)
        except KeyboardInterrupt:
            return print_error("interrupted: the transaction was aborted", ExitCode.INTERRUPTED)
        except BadLine as exc:
            return print_error(f"line {feed.line_count}: {exc}; the transaction was aborted", ExitCode.FAILED)
        print(f"committed {feed.line_count} records", file=sys.stderr)
        return ExitCode.DONE


def _print_prepared_state(producer: Producer, name: str, state: PreparedTxnState, count: int) -> ExitCode:
    """Print the state; if that fails, abort, because the transaction could never be committed."""
    try:
        print(state, flush=True)
    except OSError as exc:
        silence_stdout()
        producer.abort_transaction()
        return print_error(f"the state could not be printed ({exc}): aborted", ExitCode.FAILED)
    if not state:
        print("nothing was sent, so nothing is prepared: the state is empty", file=sys.stderr)
        return ExitCode.DONE
    print(
        f"prepared {count} records, in doubt until a decision. To commit: store the line above together with "
        "your own data, then\n"
        f"  tallystick transactions complete {name} {state}\n"
        "With any other state, or an empty one, that aborts.",
        file=sys.stderr,
    )
    return ExitCode.DONE


def _report_failed_lines(feed: LineSender) -> ExitCode:
    for number, failure in feed.failures:
        print_error(f"line {number}: {failure}", ExitCode.FAILED)
    if feed.failed_count > len(feed.failures):
        print_error(f"{feed.failed_count} of {feed.line_count} records were not written", ExitCode.FAILED)
    return ExitCode.FAILED if feed.failed_count else ExitCode.DONE
