"""`tallystick top`: both sides of every transaction in a terminal, or once as a text."""

import asyncio
import os
import pwd
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Final

import typer

from tallystick import console as consoles
from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.commands.console import (
    AllowActions,
    AuditLog,
    Decisions,
    Grace,
    Limit,
    Stores,
    configure_actions,
    list_action_problems,
)
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
)
from tallystick.cli.exits import ExitCode, interruptible
from tallystick.console.actions.config import ActionConfig
from tallystick.console.collect.collector import Collector
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.collect.feed import SnapshotFollower, StateFeed
from tallystick.console.model.health import Limits
from tallystick.console.model.state import ConsoleState
from tallystick.console.terminal.summary import LookOutcome, Looks, assess_state, list_summary
from tallystick.kernel.clock import SystemClock
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.spark.options.option_table import DECISIONS_TOPIC

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ONCE_SECONDS_MAX: Final = 30
_EXITS: Final = {
    LookOutcome.WELL: ExitCode.DONE,
    LookOutcome.NEEDS_OPERATOR: ExitCode.HANGING,
    LookOutcome.INCOMPLETE: ExitCode.INCOMPLETE,
}

Once = Annotated[
    bool,
    typer.Option(
        "--once", help="Print a summary and exit: 0 well, 3 a transaction needs an operator, 4 incomplete."
    ),
]


@app.command()
def top(
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    store: Stores = None,
    decisions: Decisions = None,
    grace_s: Grace = 60,
    limit_s: Limit = 900,
    once: Once = False,
    allow_actions: AllowActions = False,
    audit_log: AuditLog = None,
) -> None:
    """Show both sides of every transaction in a terminal; see docs/console/terminal.md.

    Changes nothing without --allow-actions.
    """
    settings = build_config(ClusterOptions(bootstrap_server, command_config, profile), serves=not once)
    problems = list_action_problems(audit_log, allow_actions=allow_actions)
    if once and allow_actions:
        problems.append("--allow-actions: not with --once, which only looks")
    config: CollectorConfig | None = None
    with collect_problems(problems):
        config = CollectorConfig.check(
            select_role_settings("admin", settings),
            store or (),
            decision_topics=tuple(decisions or (DECISIONS_TOPIC,)),
            hanging_limit_ms=limit_s * 1000,
        )
    if problems or config is None:
        raise BadConfig("\n".join(problems))
    actions = configure_actions(config, settings, audit_log) if allow_actions else None
    limits = Limits(grace_ms=grace_s * 1000, limit_ms=limit_s * 1000)
    if once:
        try:
            with interruptible():
                state = asyncio.run(_look(config, limits))
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        raise typer.Exit(_print_summary(state))
    with suppress(KeyboardInterrupt):  # before the terminal takes the keys
        asyncio.run(_run(config, limits, actions))


async def _run(config: CollectorConfig, limits: Limits, actions: ActionConfig | None) -> None:
    run_top = consoles.run_top  # which needs the extra: before anything is connected
    _check_terminal()
    async with AsyncExitStack() as stack:
        log = stack.enter_context(consoles.hold_log())
        collector = await stack.enter_async_context(Collector(config))
        lookups = await stack.enter_async_context(consoles.ClusterLookups(config))
        action_service = None
        if actions is not None:
            action_service = await stack.enter_async_context(
                consoles.ActionService(actions, follow_up=collector.read_soon)
            )
        services = consoles.TopServices(
            read_soon=collector.read_soon,
            lookups=lookups,
            action_service=action_service,
            user=_name_user(),
            find_console=consoles.find_console,
        )
        await run_top(collector, limits, services, log)


def _name_user() -> str:
    """Return who acts, as the audit log names them: not what the environment says, which anyone may set."""
    number = os.getuid()
    try:
        return f"{pwd.getpwuid(number).pw_name} at a terminal"
    except KeyError:
        return f"user {number} at a terminal"


def _check_terminal() -> None:
    """Check that there is a terminal to draw on. Raises: BadConfig."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream is not None and stream.isatty() for stream in streams):
        raise BadConfig("top: needs a terminal for input and output; use --once for a text")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise BadConfig("top: this terminal cannot place text (TERM is dumb or not set); use --once")


async def _look(config: CollectorConfig, limits: Limits) -> ConsoleState:
    async with Collector(config) as collector:
        return await look_once(collector, limits, collector.read_soon)


async def look_once(
    source: SnapshotFollower,
    limits: Limits,
    read_soon: Callable[[], None],
    *,
    seconds_max: float = ONCE_SECONDS_MAX,
) -> ConsoleState:
    """Return the state as soon as one more look would say no more, or what there is when the time is over."""
    feed, looks = StateFeed(ConsoleState(limits=limits)), Looks()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds_max):
            async for snapshot in source.follow():
                feed.publish(snapshot)
                looks = looks.advance(snapshot)
                if looks.are_enough(feed.state):
                    break
                read_soon()
    return feed.state


def _print_summary(state: ConsoleState) -> ExitCode:
    """Print the summary; what the encoding of stdout lacks is written as its escape."""
    encoding = sys.stdout.encoding or "ascii"
    for line in list_summary(state, SystemClock().now_ms()):
        print(line.encode(encoding, "backslashreplace").decode(encoding))
    return _EXITS[assess_state(state)]
