"""`tallystick doctor`: what works on a cluster, for a principal and a role."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tallystick.admin.doctor.checks import DoctorRow, Question, Status, judge
from tallystick.admin.doctor.facts import ClientPlan, DoctorFacts, Resource
from tallystick.admin.doctor.gather import Doctor
from tallystick.admin.doctor.roles import Role
from tallystick.cli.cluster_command import (
    BOOTSTRAP_OPTION,
    COMMAND_CONFIG_OPTION,
    build_config,
    select_role_settings,
)
from tallystick.cli.exits import ExitCode
from tallystick.cli.tables import OutputFormat, print_rows
from tallystick.client.config import AdminConfig
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.settings import BadConfig
from tallystick.protocol.acls import AclResource

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_COLUMNS: Final = ("area", "check", "status", "detail", "action")
_STEP_LIMIT_MS: Final = 3_000
_TIMEOUTS: Final = {
    "socket.connection.setup.timeout.ms": _STEP_LIMIT_MS,
    "socket.connection.setup.timeout.max.ms": _STEP_LIMIT_MS,
    "request.timeout.ms": _STEP_LIMIT_MS,
    "default.api.timeout.ms": 2 * _STEP_LIMIT_MS,
}
_STYLES: Final = {Status.OK: "green", Status.FAIL: "bold red", Status.UNKNOWN: "yellow", Status.NOTE: "cyan"}
_PIPE_WIDTH: Final = 1_000_000


@app.command()
def doctor(
    *,
    bootstrap_server: Annotated[str | None, BOOTSTRAP_OPTION] = None,
    command_config: Annotated[Path | None, COMMAND_CONFIG_OPTION] = None,
    transactional_id: Annotated[
        list[str] | None, typer.Option(help="Check the rights on it; never takes it over. Repeatable.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Check the rights on it. Repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Check the rights on it. Repeatable.")] = None,
    role: Annotated[list[Role] | None, typer.Option(help="Only what this one needs. Repeatable.")] = None,
    output: Annotated[OutputFormat, typer.Option(help="For people or for programs.")] = OutputFormat.TABLE,
) -> None:
    """Say what works on a cluster: login, versions, modes and rights.

    Changes nothing. Exit codes: 0 all is there, 1 something is missing, 4 something could not be learned.
    """
    config = build_config(bootstrap_server, command_config)
    plan = _read_plan(config)
    settings = AdminConfig.parse(select_role_settings("admin", config | _TIMEOUTS))
    named = (
        (AclResource.TRANSACTIONAL_ID, transactional_id),
        (AclResource.TOPIC, topic),
        (AclResource.GROUP, group),
    )
    subjects = [Resource(kind, name) for kind, names in named for name in names or ()]

    async def gather() -> DoctorFacts:
        return await Doctor(settings.client, plan).gather(subjects)

    question = Question(
        facts=asyncio.run(gather()),
        roles=tuple(dict.fromkeys(role or Role)),
        bootstrap=",".join(map(str, settings.client.bootstrap_addresses)),
        now_ms=int(time.time() * 1000),
    )
    findings = judge(question)
    _print(findings, output)
    raise typer.Exit(choose_exit(findings))


def choose_exit(findings: Sequence[DoctorRow]) -> ExitCode:
    """Return the exit code: what is missing counts more than what is unknown."""
    statuses = {finding.status for finding in findings}
    if Status.FAIL in statuses:
        return ExitCode.FAILED
    return ExitCode.INCOMPLETE if Status.UNKNOWN in statuses else ExitCode.DONE


def _read_plan(config: dict[str, object]) -> ClientPlan:
    """Read what the application's own settings plan; take the modes out, which are no client's setting."""
    modes = str(config.pop("tallystick.modes", Mode.TWO_PHASE.value))
    timeout = str(config.get("transaction.timeout.ms", config.get("transaction_timeout_ms", 60_000)))
    try:
        listed = tuple(Mode(name.strip()) for name in modes.split(","))
    except ValueError:
        raise BadConfig(f"tallystick.modes: {modes}: is none of 2pc, keep, resume") from None
    if not (timeout.isascii() and timeout.isdecimal()):
        raise BadConfig(f"transaction.timeout.ms: {timeout}: is no number")
    return ClientPlan(modes=listed, transaction_timeout_ms=int(timeout))


def _print(findings: Sequence[DoctorRow], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_rows(_COLUMNS, [{name: getattr(each, name) for name in _COLUMNS} for each in findings], output)
        return
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=None)
    table.add_column(overflow="fold")
    for each in findings:
        table.add_row(
            Text(each.status.value, style=_STYLES[each.status]), Text(each.check), Text(each.detail)
        )
    console.print(table)
    actions = dict.fromkeys(_format_action(each) for each in findings if each.action)
    if actions:
        console.print(Text("\nTo do:", style="bold"))
    for action in actions:
        # Not wrapped by us: a command is to be copied whole.
        console.print(Text(f"  {action}"), soft_wrap=True)


def _format_action(finding: DoctorRow) -> str:
    """Write a command alone, and any other action behind what it is about."""
    if finding.action.startswith("tallystick acls "):
        return finding.action
    return f"{finding.check}: {finding.action}"
