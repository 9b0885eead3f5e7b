"""`tallystick acls`: ACLs of topics, groups and transactional ids, like `kafka-acls.sh`."""

import sys
from enum import IntEnum
from typing import Annotated, Final, TypeVar

import typer

from tallystick.admin.acls import Acl, AclFilter, collect_deleted
from tallystick.cli.cluster_command import ClusterTarget, confirm, create_app, report_failures
from tallystick.cli.exits import ExitCode, print_error
from tallystick.cli.tables import OutputFormat, Row, print_rows
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource

app = create_app("List, grant and take back rights. Needs a cluster with an authorizer.")

E = TypeVar("E", bound=IntEnum)

_COLUMNS: Final = (
    "ResourceType",
    "ResourceName",
    "PatternType",
    "Principal",
    "Host",
    "Operation",
    "Permission",
)
_CLUSTER_NAME: Final = "kafka-cluster"

Topic = Annotated[list[str] | None, typer.Option("--topic", help="A topic; repeatable.")]
Group = Annotated[list[str] | None, typer.Option("--group", help="A group; repeatable.")]
Id = Annotated[list[str] | None, typer.Option("--transactional-id", help="A transactional id; repeatable.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Pattern = Annotated[
    str, typer.Option("--resource-pattern-type", help="literal or prefixed; in a search, also match and any.")
]
Operations = Annotated[
    list[str] | None,
    typer.Option("--operation", help="All, Read, Write, Describe, TwoPhaseCommit ...; repeatable."),
]
Allowed = Annotated[list[str] | None, typer.Option("--allow-principal", help="As User:name; repeatable.")]
Denied = Annotated[list[str] | None, typer.Option("--deny-principal", help="As User:name; repeatable.")]
Principal = Annotated[str | None, typer.Option("--principal", help="Only of this one, as User:name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_(
    context: typer.Context,
    *,
    topic: Topic = None,
    group: Group = None,
    transactional_id: Id = None,
    cluster: Cluster = False,
    pattern: Pattern = "match",
    principal: Principal = None,
) -> None:
    """List rules; without options all of them."""
    at: ClusterTarget = context.obj
    resources = _collect_resources(topic, group, transactional_id, cluster)
    filters = [
        AclFilter(resource=kind, name=name, pattern=_parse_enum(AclPattern, pattern), principal=principal)
        for kind, name in resources
    ] or [AclFilter(principal=principal)]
    with at.open_admin() as admin:
        acls = dict.fromkeys(acl for each in filters for acl in admin.describe_acls(each))
    at.print_rows(_COLUMNS, [_format_row(acl) for acl in acls])


@app.command()
def create(
    context: typer.Context,
    *,
    operation: Operations = None,
    allow_principal: Allowed = None,
    deny_principal: Denied = None,
    host: Annotated[str, typer.Option(help="Address of the client, or * for any.")] = "*",
    topic: Topic = None,
    group: Group = None,
    transactional_id: Id = None,
    cluster: Cluster = False,
    pattern: Pattern = "literal",
) -> None:
    """Grant or deny operations on resources.

    Two-phase commit needs two: --operation Write --operation TwoPhaseCommit --transactional-id ID.
    """
    at: ClusterTarget = context.obj
    resources = _collect_resources(topic, group, transactional_id, cluster)
    if not resources or not operation or not (allow_principal or deny_principal):
        raise typer.BadParameter(
            "give --operation, --allow-principal or --deny-principal, and a resource: "
            "--topic, --group, --transactional-id or --cluster"
        )
    rules = [
        Acl(
            resource=kind,
            name=name,
            pattern=_parse_enum(AclPattern, pattern),
            principal=principal,
            host=host,
            operation=_parse_enum(AclOperation, word),
            permission=permission,
        )
        for kind, name in resources
        for permission, principals in (
            (AclPermission.ALLOW, allow_principal or ()),
            (AclPermission.DENY, deny_principal or ()),
        )
        for principal in principals
        for word in operation
    ]
    with at.open_admin() as admin:
        answers = admin.create_acls(rules)
    at.print_rows(_COLUMNS, [_format_row(acl) for acl in answers.found], failed=bool(answers.failures))
    failures = {str(acl): why for acl, why in answers.failures.items()}
    raise typer.Exit(report_failures(failures) and ExitCode.FAILED)


@app.command()
def delete(
    context: typer.Context,
    *,
    operation: Operations = None,
    principal: Principal = None,
    host: Annotated[str | None, typer.Option(help="Only for this one.")] = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: Id = None,
    cluster: Cluster = False,
    pattern: Pattern = "literal",
    yes: Yes = False,
) -> None:
    """Delete the rules that match all given options.

    They are shown first, on stderr; the deleted ones are printed on stdout.
    """
    at: ClusterTarget = context.obj
    resources = _collect_resources(topic, group, transactional_id, cluster)
    if not resources:
        raise typer.BadParameter("give a resource: --topic, --group, --transactional-id or --cluster")
    filters = [
        AclFilter(
            resource=kind,
            name=name,
            pattern=_parse_enum(AclPattern, pattern),
            principal=principal,
            host=host,
            operation=_parse_enum(AclOperation, word),
        )
        for kind, name in resources
        for word in operation or ("any",)
    ]
    with at.open_admin() as admin:
        acls = dict.fromkeys(acl for each in filters for acl in admin.describe_acls(each))
        if not acls:
            print_error("no such rule", ExitCode.DONE)
            return
        print_rows(_COLUMNS, [_format_row(acl) for acl in acls], OutputFormat.TABLE, sys.stderr)
        confirm(f"Delete {len(acls)} rules?", yes=yes)
        answers = admin.delete_acls(filters)
    deleted = [_format_row(acl) for acl in collect_deleted(answers)]
    at.print_rows(_COLUMNS, deleted, failed=bool(answers.failures))
    failures = {f"{each.resource.name.lower()} {each.name!r}": why for each, why in answers.failures.items()}
    raise typer.Exit(report_failures(failures) and ExitCode.FAILED)


def _collect_resources(
    topics: list[str] | None, groups: list[str] | None, ids: list[str] | None, cluster: bool
) -> list[tuple[AclResource, str]]:
    names_by_resource = (
        (AclResource.TOPIC, topics),
        (AclResource.GROUP, groups),
        (AclResource.TRANSACTIONAL_ID, ids),
        (AclResource.CLUSTER, [_CLUSTER_NAME] if cluster else None),
    )
    return [(kind, name) for kind, names in names_by_resource for name in names or ()]


def _parse_enum(cls: type[E], text: str) -> E:
    """Find a member by Kafka's spelling, TwoPhaseCommit, or the schema's, two_phase_commit."""
    members = {each.name.replace("_", ""): each for each in cls}
    member = members.get(text.upper().replace("_", "").replace("-", ""))
    if member is None:
        raise typer.BadParameter(f"{text}: must be one of {', '.join(_format_enum(each) for each in cls)}")
    return member


def _format_enum(number: int) -> str:
    return number.name.title().replace("_", "") if isinstance(number, IntEnum) else str(number)


def _format_row(acl: Acl) -> Row:
    return {
        "ResourceType": _format_enum(acl.resource),
        "ResourceName": acl.name,
        "PatternType": _format_enum(acl.pattern),
        "Principal": acl.principal,
        "Host": acl.host,
        "Operation": _format_enum(acl.operation),
        "Permission": _format_enum(acl.permission),
    }
