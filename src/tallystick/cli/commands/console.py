"""`tallystick console`: both sides of every transaction in a browser; by default it changes nothing."""

import asyncio
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from tallystick import _lazy
from tallystick import console as consoles
from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
)
from tallystick.console.actions.config import ActionConfig
from tallystick.console.collect.config import CollectorConfig
from tallystick.console.model.health import Limits
from tallystick.console.web.listen import ListenOptions, format_address, open_listener, parse_listen
from tallystick.kernel.settings import BadConfig, collect_problems
from tallystick.security.http_credentials import CredentialFiles
from tallystick.spark.options.option_table import DECISIONS_TOPIC

app = typer.Typer(add_completion=False, rich_markup_mode=None)


Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve the pages; port 0: any.")]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store", metavar="URL", help="A database, or lake table (delta:/FOLDER), that decides. Repeatable."
    ),
]
Decisions = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC", help="A topic with decisions of Spark. Repeatable.")
]
Grace = Annotated[
    int, typer.Option(metavar="SECONDS", min=0, help="How long a decided transaction may stay open.")
]
Limit = Annotated[
    int, typer.Option(metavar="SECONDS", min=1, help="How long a transaction should take at most.")
]
TokenFile = Annotated[Path | None, typer.Option(help="A file with the bearer token that requests need.")]
User = Annotated[str, typer.Option(help="The user that requests need.")]
PasswordFile = Annotated[Path | None, typer.Option(help="A file with that user's password.")]
Certificate = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM file of the certificate: serve https.")
]
Key = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PEM file of its key, if it is not in the same file.")
]
AllowActions = Annotated[
    bool, typer.Option("--allow-actions", help="Let pages end transactions and move offsets.")
]
AuditLog = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Append a line here before and after each action.")
]
HostNames = Annotated[
    list[str] | None,
    typer.Option("--host-name", help="A further name that requests may come under. Repeatable."),
]


@app.command()
def console(
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    listen: Listen = "127.0.0.1:8080",
    store: Stores = None,
    decisions: Decisions = None,
    grace_s: Grace = 60,
    limit_s: Limit = 900,
    token_file: TokenFile = None,
    user: User = "",
    password_file: PasswordFile = None,
    certificate: Certificate = None,
    key: Key = None,
    host_name: HostNames = None,
    allow_actions: AllowActions = False,
    audit_log: AuditLog = None,
) -> None:
    """Show both sides of every transaction in a browser; see docs/console.md.

    Changes nothing without --allow-actions.
    """
    settings = build_config(ClusterOptions(bootstrap_server, command_config, profile), serves=True)
    client = select_role_settings("admin", settings)
    host, port = parse_listen(listen)
    options = ListenOptions(
        host=host,
        port=port,
        host_names=tuple(name.lower() for name in host_name or ()),
        credentials=CredentialFiles(
            prefix="--",
            token_file=None if token_file is None else str(token_file),
            user=user,
            password_file=None if password_file is None else str(password_file),
        ),
        certificate=certificate,
        key=key,
    )
    problems = [*options.find_problems(), *list_action_problems(audit_log, allow_actions=allow_actions)]
    config: CollectorConfig | None = None
    with collect_problems(problems):
        config = CollectorConfig.check(
            client,
            store or (),
            decision_topics=tuple(decisions or (DECISIONS_TOPIC,)),
            hanging_limit_ms=limit_s * 1000,
        )
    if problems or config is None:
        raise BadConfig("\n".join(problems))
    actions = configure_actions(config, settings, audit_log) if allow_actions else None
    limits = Limits(grace_ms=grace_s * 1000, limit_ms=limit_s * 1000)
    _lazy.check_extra("console")  # which loads only after the address has been printed
    with open_listener(options) as listener, suppress(KeyboardInterrupt):  # the way to end it
        print(f"The console is at {format_address(options, listener)}", file=sys.stderr, flush=True)
        asyncio.run(_serve(config, listener, options, limits, actions))


def list_action_problems(audit_log: Path | None, *, allow_actions: bool) -> list[str]:
    """Return what of the options for actions does not go together."""
    return [] if audit_log is None or allow_actions else ["--audit-log: needs --allow-actions"]


def configure_actions(
    config: CollectorConfig, settings: Mapping[str, object], audit_log: Path | None
) -> ActionConfig:
    """Return what actions need, from the settings of the command."""
    return ActionConfig(
        admin=config.client,
        producer=select_role_settings("producer", settings),
        stores=config.stores,
        decision_topics=config.decision_topics,
        audit_log=audit_log,
    )


async def _serve(
    config: CollectorConfig,
    listener: socket.socket,
    options: ListenOptions,
    limits: Limits,
    actions: ActionConfig | None,
) -> None:
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(consoles.Collector(config))
        lookups = await stack.enter_async_context(consoles.ClusterLookups(config))
        action_service = None
        if actions is not None:
            action_service = await stack.enter_async_context(
                consoles.ActionService(actions, follow_up=collector.read_soon)
            )
        feed = consoles.open_feed(collector, limits)
        services = consoles.Services(lookups=lookups, action_service=action_service)
        await consoles.serve(collector, services, listener, options, feed)
