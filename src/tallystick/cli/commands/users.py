"""`tallystick users`: users that log in with SCRAM, like `kafka-configs.sh --entity-type users`.

Users of PLAIN are in the broker's settings, those of OAUTHBEARER at an identity provider.
"""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tallystick.admin.scram import (
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from tallystick.cli.cluster_command import ClusterTarget, confirm, create_app, report_failures
from tallystick.cli.exits import ExitCode
from tallystick.cli.scram_text import parse_iterations, parse_scram_argument, read_password_file
from tallystick.cli.subjects import merge_names, unite_names
from tallystick.cli.tables import Row
from tallystick.client.errors import ClientError
from tallystick.kernel.secret import Secret
from tallystick.security.sasl.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, SCRAM_SHA_512

app = create_app("List, create and delete users that log in with SCRAM.")

_COLUMNS: Final = ("User", "Mechanism", "Iterations")

Users = Annotated[list[str] | None, typer.Argument(metavar="USER", show_default=False)]
UserOption = Annotated[list[str] | None, typer.Option("--user", help="The same as USER; repeatable.")]
Mechanisms = Annotated[
    list[str] | None, typer.Option("--mechanism", help=f"{', '.join(SCRAM_MECHANISMS)}; repeatable.")
]


@app.command("list")
def list_(context: typer.Context, users: Users = None, *, user: UserOption = None) -> None:
    """List users and their mechanisms; without a USER all of them."""
    at: ClusterTarget = context.obj
    with at.open_admin() as admin:
        answers = admin.describe_user_scram_credentials(unite_names(users, user))
    rows = [row for name, infos in sorted(answers.found.items()) for row in _format_rows(name, infos)]
    at.print_rows(_COLUMNS, rows, failed=bool(answers.failures))
    raise typer.Exit(report_failures(answers.failures) and ExitCode.FAILED)


@app.command()
def create(
    context: typer.Context,
    users: Users = None,
    *,
    user: UserOption = None,
    mechanism: Mechanisms = None,
    iterations: Annotated[str, typer.Option(help="How often the password is hashed.")] = str(ITERATIONS_MIN),
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="A file whose first line is the password.")
    ] = None,
    add_scram: Annotated[
        list[str] | None,
        typer.Option("--add-scram", help="As kafka-storage.sh takes it: SCRAM-SHA-512=[name=U,password=P]."),
    ] = None,
) -> None:
    """Create users, or give them another password.

    The password is asked for, or read from --password-file, or from standard input if that is no terminal.
    """
    at: ClusterTarget = context.obj
    credentials = [parse_scram_argument(each) for each in add_scram or ()]
    names = unite_names(users, user) if credentials else merge_names(context, users, user, "USER")
    if names:
        count, mechanisms = parse_iterations(iterations), mechanism or [SCRAM_SHA_512.name]
        password = Secret(_read_password(password_file))
        credentials += [
            UserScramCredentialUpsertion(name, ScramCredentialInfo(each, count), password)
            for name in names
            for each in mechanisms
        ]
    failures: dict[str, ClientError] = {}
    rows: list[Row] = []
    with at.open_admin() as admin:
        # A request names a user once (KIP-554): a second mechanism is a request of its own.
        for each in credentials:
            answers = admin.alter_user_scram_credentials([each])
            failures |= answers.failures
            rows += [] if answers.failures else _format_rows(each.user, [each.credential])
    at.print_rows(_COLUMNS, rows, failed=bool(failures))
    raise typer.Exit(report_failures(failures) and ExitCode.FAILED)


@app.command()
def delete(
    context: typer.Context,
    users: Users = None,
    *,
    user: UserOption = None,
    mechanism: Mechanisms = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete users, or their credentials for some mechanisms. Sessions that are open go on."""
    at: ClusterTarget = context.obj
    names = merge_names(context, users, user, "USER")
    with at.open_admin() as admin:
        described = admin.describe_user_scram_credentials(names)
        failures = dict(described.failures)
        doomed = [
            (name, info)
            for name, infos in described.found.items()
            for info in infos
            if mechanism is None or info.mechanism in mechanism
        ]
        if doomed:
            confirm(f"Delete {len(doomed)} credentials of {', '.join(described.found)}?", yes=yes)
        rows: list[Row] = []
        for name, info in doomed:
            answers = admin.alter_user_scram_credentials([UserScramCredentialDeletion(name, info.mechanism)])
            failures |= answers.failures
            rows += [] if answers.failures else _format_rows(name, [info])
    at.print_rows(_COLUMNS, rows, failed=bool(failures))
    raise typer.Exit(report_failures(failures) and ExitCode.FAILED)


def _read_password(path: Path | None) -> str:
    if path is not None:
        return read_password_file(path)
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise typer.BadParameter("there is no terminal to ask for the password, and none on standard input")
    return password


def _format_rows(
    user: str, infos: "list[ScramCredentialInfo] | tuple[ScramCredentialInfo, ...]"
) -> list[Row]:
    return [{"User": user, "Mechanism": info.mechanism, "Iterations": str(info.iterations)} for info in infos]
