"""`tallystick doctor`: what works on a cluster, for a principal and a role."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tallystick.admin.doctor.checks import DoctorRow, Question, Status, assess
from tallystick.admin.doctor.facts import ClientPlan, DoctorFacts, Resource
from tallystick.admin.doctor.gather import Doctor
from tallystick.admin.doctor.production import ProductionFacts, ProductionQuestion, assess_production
from tallystick.admin.doctor.roles import Role
from tallystick.cli.cluster_command import select_role_settings
from tallystick.cli.connection import (
    BootstrapServer,
    ClusterOptions,
    CommandConfig,
    ProfileName,
    build_config,
)
from tallystick.cli.exits import ExitCode
from tallystick.cli.tables import OutputFormat, print_rows
from tallystick.cli.terminal_text import make_printable
from tallystick.client.net.metadata import is_topic_name
from tallystick.client.settings.config import AdminConfig
from tallystick.client.transactions.modes import Mode, list_modes
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.protocol.acls import AclResource
from tallystick.security.secret_files import has_readers

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_COLUMNS: Final = ("area", "check", "status", "detail", "action")
_STEP_LIMIT_MS: Final = 3_000
CONNECTION_LIMITS: Final = {
    "socket.connection.setup.timeout.ms": _STEP_LIMIT_MS,
    "socket.connection.setup.timeout.max.ms": _STEP_LIMIT_MS,
    "request.timeout.ms": _STEP_LIMIT_MS,
    "default.api.timeout.ms": 2 * _STEP_LIMIT_MS,
}
_STYLES: Final = {
    Status.OK: "green",
    Status.FAIL: "bold red",
    Status.UNKNOWN: "yellow",
    Status.NOTE: "cyan",
    Status.LOOK: "cyan",
}
_SECRET_FILES: Final = ("ssl.key.location", "ssl.keystore.location")
_SECRET_ENDINGS: Final = ("password", "secret", "keystore.key", "jaas.config")
_PIPE_WIDTH: Final = 1_000_000
_GAP: Final = "  "
_CHECK_WIDTH_MAX: Final = 60
_WRAP_WIDTH_MIN: Final = 20


@app.command()
def doctor(
    *,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    profile: ProfileName = None,
    transactional_id: Annotated[
        list[str] | None, typer.Option(help="Check the rights on it; never takes it over. Repeatable.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Check the rights on it. Repeatable.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Check the rights on it. Repeatable.")] = None,
    role: Annotated[list[Role] | None, typer.Option(help="Only what this one needs. Repeatable.")] = None,
    production: Annotated[
        bool, typer.Option("--production", help="Go through the production checklist instead, line by line.")
    ] = False,
    output: Annotated[OutputFormat, typer.Option(help="For people or for programs.")] = OutputFormat.TABLE,
) -> None:
    """Say what works on a cluster: login, versions, modes and rights.

    Changes nothing. Exit codes: 0 all is there, 1 something is missing, 4 something could not be learned.
    """
    config = build_config(ClusterOptions(bootstrap_server, command_config, profile))
    plan = _read_plan(config)
    settings = AdminConfig.parse(select_role_settings("admin", config | CONNECTION_LIMITS))
    named = (
        (AclResource.TRANSACTIONAL_ID, transactional_id),
        (AclResource.TOPIC, topic),
        (AclResource.GROUP, group),
    )
    subjects = [Resource(kind, name) for kind, names in named for name in names or ()]
    _check_names(subjects)

    async def gather() -> DoctorFacts:
        return await Doctor(settings.client, plan).gather(subjects)

    question = Question(
        facts=asyncio.run(gather()),
        roles=tuple(dict.fromkeys(role or Role)),
        bootstrap=",".join(map(str, settings.client.bootstrap_addresses)),
        now_ms=int(time.time() * 1000),
    )
    findings = (
        assess_production(ProductionQuestion(question, look_at_client(config, command_config)))
        if production
        else assess(question)
    )
    print_findings(findings, output)
    raise typer.Exit(choose_exit(findings))


def look_at_client(config: Mapping[str, object], file: Path | None) -> ProductionFacts:
    """Return what the settings and files of the client say for the production checklist.

    Args:
        file: the one that the settings were read from.
    """
    named = [str(config[name]) for name in _SECRET_FILES if config.get(name)]
    if file is not None and any(name.endswith(_SECRET_ENDINGS) for name in config):
        named.append(str(file))
    isolation = str(config.get("isolation.level", config.get("isolation_level", "")))
    return ProductionFacts(open_files=tuple(path for path in named if has_readers(path)), isolation=isolation)


def _check_names(subjects: Sequence[Resource]) -> None:
    """Refuse names that no resource can have, before anything is sent. Raises: BadConfig."""
    for subject in subjects:
        option = f"--{subject.type.name.lower().replace('_', '-')}"
        if not subject.name:
            raise BadConfig(f"{option}: must not be empty")
        if subject.type is AclResource.TOPIC and not is_topic_name(subject.name):
            raise BadConfig(
                f"{option}: {subject.name!r} is not a topic name: 1 to 249 characters of a-z A-Z 0-9 . _ -"
            )


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
        mode_list = list_modes(name.strip() for name in modes.split(","))
    except ValueError:
        raise BadConfig(f"tallystick.modes: {modes}: is not 2pc, keep or resume") from None
    if not (timeout.isascii() and timeout.isdecimal()):
        raise BadConfig(f"transaction.timeout.ms: {timeout}: is not a number")
    return ClientPlan(modes=mode_list, transaction_timeout_ms=int(timeout))


def print_findings(findings: Sequence[DoctorRow], output: OutputFormat) -> None:
    """Print the rows, and what to do about them."""
    if output is OutputFormat.JSON:
        print_rows(_COLUMNS, [{name: getattr(each, name) for name in _COLUMNS} for each in findings], output)
        return
    findings = [
        replace(
            each,
            check=make_printable(each.check, one_line=True),
            detail=make_printable(each.detail),
            action=make_printable(each.action, one_line=True),
        )
        for each in findings
    ]
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(file=sys.stdout, width=width, highlight=False)
    for line in _lay_out(findings, console):
        console.print(line, soft_wrap=True)
    actions = dict.fromkeys(_format_action(each) for each in findings if each.action)
    if actions:
        console.print(Text("\nTo do:", style="bold"))
    for action in actions:
        # Not wrapped by us: a command is to be copied whole.
        console.print(Text(f"  {action}"), soft_wrap=True)


def _lay_out(findings: Sequence[DoctorRow], console: Console) -> Iterator[Text]:
    """Yield lines of status, check and detail.

    A check that is too long for its column has its detail behind it, or below it if the line is full: one
    topic of 249 characters would else take the room of all the details.
    """
    status_width = max(len(status.value) for status in Status) + len(_GAP)
    check_width_max = min(_CHECK_WIDTH_MAX, (console.width - status_width) // 2)
    fitting = [cell_len(each.check) for each in findings if cell_len(each.check) <= check_width_max]
    detail_at = status_width + max(fitting, default=0) + len(_GAP)
    for each in findings:
        status = Text(each.status.value, style=_STYLES[each.status])
        status.pad_right(status_width - len(status))
        check_width = cell_len(each.check)
        gap = " " * max(detail_at - status_width - check_width, len(_GAP))
        details = _wrap(each.detail, console.width - detail_at, console)
        if check_width <= check_width_max:
            yield Text.assemble(status, each.check, gap, details.pop(0))
        elif status_width + check_width + len(gap) + cell_len(each.detail) <= console.width:
            yield Text.assemble(status, each.check, gap, each.detail)
            continue
        else:
            checks = _wrap(each.check, console.width - status_width, console)
            yield Text.assemble(status, checks.pop(0))
            yield from (Text(" " * status_width).append_text(line) for line in checks)
        yield from (Text(" " * detail_at).append_text(line) for line in details)


def _wrap(text: str, width: int, console: Console) -> list[Text]:
    lines = list(Text(text).wrap(console, max(width, _WRAP_WIDTH_MIN), overflow="fold"))
    for line in lines:
        line.rstrip()
    return lines or [Text()]


def _format_action(finding: DoctorRow) -> str:
    """Write a command alone, and any other action behind what it is about."""
    if finding.action.startswith("tallystick acls "):
        return finding.action
    return f"{finding.check}: {finding.action}"
