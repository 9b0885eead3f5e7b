"""From facts to the rows of `tallystick doctor`: a table of check functions. Pure."""

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Final

from tallystick.admin.doctor.facts import (
    CLUSTER,
    DoctorFacts,
    FailureCause,
    LoginFacts,
    Resource,
    ResourceRights,
    ServerFacts,
)
from tallystick.admin.doctor.roles import APIS, NEEDS, Role
from tallystick.client.transactions.modes import Mode, find_missing_capability
from tallystick.kernel.value import Value
from tallystick.protocol.acls import AclOperation, AclResource
from tallystick.protocol.apis import API_SPECS
from tallystick.security.sasl.oauthbearer import OAUTHBEARER

MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
TWO_PHASE_SWITCH: Final = "transaction.two.phase.commit.enable"
_CERTIFICATE_WARNING_DAYS: Final = 14
_DAY_MS: Final = 86_400_000
_UNITS: Final = ((_DAY_MS, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms"))


class Status(StrEnum):
    """Result of a check.

    `note` concerns nothing that the role needs, or something that was not named; `look` what only a person
    can see.
    """

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOTE = "note"
    LOOK = "look"


class DoctorRow(Value, kw_only=True):
    """One row: what was checked, the result, and what to do about it."""

    area: str
    check: str
    status: Status
    detail: str
    action: str = ""


class Question(Value, kw_only=True):
    """Criteria by which the facts are checked."""

    facts: DoctorFacts
    roles: tuple[Role, ...]
    bootstrap: str
    now_ms: int


def assess(question: Question) -> list[DoctorRow]:
    """Return a row for every check; without a broker that answers, only those of the connection."""
    findings = list(_check_servers(question))
    if any(not server.failure for server in question.facts.servers):
        findings += [finding for check in _CHECKS for finding in check(question)]
    return findings


def format_duration(length_ms: int) -> str:
    """Write a time in the largest unit that is not above it, with one decimal at most."""
    size, unit = next((each for each in _UNITS if length_ms >= each[0]), _UNITS[-1])
    return f"{round(length_ms / size, 1):g} {unit}"


# ---- connection


def _check_servers(question: Question) -> Iterator[DoctorRow]:
    servers = question.facts.servers
    answers = any(not server.failure for server in servers)
    for server in servers:
        # One server that answers is enough to connect: the others are its replacements.
        failure_status = Status.NOTE if answers else Status.FAIL
        yield DoctorRow(
            area="connection",
            check=server.address,
            status=failure_status if server.failure else Status.OK,
            detail=server.failure or "answers",
            action=_advise(server, question.facts.login) if server.failure else "",
        )


def _advise(server: ServerFacts, login: LoginFacts) -> str:
    """Return what to do about a connection that failed, by what it failed at."""
    match server.cause:
        case FailureCause.UNREACHABLE:
            return (
                "correct this address or security.protocol, or look at that broker: it may be down, stuck or "
                "behind a firewall"
            )
        case FailureCause.TLS:
            return (
                "compare the certificates with the settings ssl.*, and security.protocol with the listener "
                "of this port"
            )
        case FailureCause.LOGIN:
            secret = (
                "the token and where it comes from (sasl.oauthbearer.*)"
                if login.mechanism == OAUTHBEARER
                else "sasl.username and sasl.password, and whether the broker has this user"
            )
            return f"check {secret}; or sasl.mechanism, security.protocol and the port"
        case FailureCause.NOT_TRIED:
            return ""


def _check_login(question: Question) -> Iterator[DoctorRow]:
    login = question.facts.login
    server = _pick_server(question)
    who = login.principal or "a principal that only the broker knows"
    how = f"{login.mechanism} as {who}" if login.mechanism else f"{login.protocol}, {who}"
    lasts = f", for {format_duration(server.session_lifetime_ms)}" if server.session_lifetime_ms else ""
    yield DoctorRow(area="connection", check="login", status=Status.OK, detail=how + lasts)


def _check_tls(question: Question) -> Iterator[DoctorRow]:
    tls = _pick_server(question).tls
    if tls is None:
        if question.facts.login.protocol != "PLAINTEXT":
            detail = "none: what is sent can be read on the way"
            yield DoctorRow(area="connection", check="TLS", status=Status.NOTE, detail=detail)
        return
    detail, status, action = tls.version, Status.OK, ""
    if tls.expires_at_ms is None:
        detail += ", certificate not checked"
    else:
        days = (tls.expires_at_ms - question.now_ms) // _DAY_MS
        detail += f", {', '.join(tls.names) or 'no names'}, {days} days left"
        if days < _CERTIFICATE_WARNING_DAYS:
            status, action = Status.NOTE, "replace the broker's certificate before it expires"
    yield DoctorRow(area="connection", check="TLS", status=status, detail=detail, action=action)


def _pick_server(question: Question) -> ServerFacts:
    return next(server for server in question.facts.servers if not server.failure)


# ---- versions, modes, time


def _check_apis(question: Question) -> Iterator[DoctorRow]:
    needed = {key for role in question.roles for key in APIS[role]}
    missing = sorted(API_SPECS[key].name for key in needed - question.facts.usable_apis.keys())
    if missing:
        yield DoctorRow(
            area="versions",
            check="APIs",
            status=Status.FAIL,
            detail=f"missing: {', '.join(missing)}",
            action="use a cluster that has them, such as Apache Kafka from 3.0 on, or name the roles that it "
            "is for with --role",
        )
    else:
        detail = f"all {len(needed)} that are needed"
        yield DoctorRow(area="versions", check="APIs", status=Status.OK, detail=detail)


def _check_features(question: Question) -> Iterator[DoctorRow]:
    levels = question.facts.features
    detail = ", ".join(f"{name}={level}" for name, level in sorted(levels.items())) or "none finalized"
    yield DoctorRow(area="versions", check="features", status=Status.OK, detail=detail)


def explain_obstacle(mode: Mode, facts: DoctorFacts) -> str:
    """Return why this cluster and principal do not allow a mode; empty if nothing known speaks against it."""
    if facts.capabilities is None:
        return ""
    lack = find_missing_capability(mode, facts.capabilities)
    if lack is not None or not mode.never_expires:
        return lack or ""
    if _is_switched_off(facts):
        return f"the broker's setting {TWO_PHASE_SWITCH}=true"
    for resource, rights in facts.rights.items():
        if resource.type is AclResource.TRANSACTIONAL_ID and AclOperation.TWO_PHASE_COMMIT in rights.denied:
            return f"the right TwoPhaseCommit on transactional id {resource.name}"
    return ""


def _check_mode(question: Question) -> Iterator[DoctorRow]:
    if question.roles == (Role.TOOLS,):
        return
    facts = question.facts
    obstacles = {mode: explain_obstacle(mode, facts) for mode in Mode}
    possible = next((mode for mode in Mode if not obstacles[mode]), None)
    why_not = "; ".join(f"{mode.value} needs {lack}" for mode, lack in obstacles.items() if lack)
    mode_names = ",".join(mode.value for mode in facts.plan.modes if mode is not Mode.TWO_PHASE_RESUME)
    if possible is None:
        yield DoctorRow(
            area="transactions",
            check="mode",
            status=Status.FAIL,
            detail=f"none: {why_not}",
            action="use a newer cluster",
        )
        return
    is_proven = any(AclOperation.TWO_PHASE_COMMIT in rights.allowed for rights in facts.rights.values())
    unproven = ", with the right TwoPhaseCommit" if possible.never_expires and not is_proven else ""
    usable = any(not obstacles[mode] for mode in facts.plan.modes)
    yield DoctorRow(
        area="transactions",
        check="mode",
        status=Status.OK if usable else Status.FAIL,
        detail=f"{possible.value}{': ' if why_not else ''}{why_not}{unproven}",
        action=""
        if usable
        else f"tallystick.modes={mode_names} is not possible here: list {_as_listed(possible)} as well, or "
        "get what is missing",
    )
    if possible.never_expires and TWO_PHASE_SWITCH not in facts.settings:
        yield DoctorRow(
            area="transactions",
            check=TWO_PHASE_SWITCH,
            status=Status.UNKNOWN,
            detail=facts.settings_failure or "the broker does not tell it",
            action=_build_settings_grant(question),
        )


def _as_listed(mode: Mode) -> str:
    """Return what to list for a mode: `2pc+resume` comes from two."""
    return mode.value.replace("+", ",")


def _check_timeout(question: Question) -> Iterator[DoctorRow]:
    facts, roles = question.facts, set(question.roles) - {Role.TOOLS}
    if not roles:
        return
    limit_text, ours = facts.settings.get(MAX_TIMEOUT) or "", facts.plan.transaction_timeout_ms
    if not (limit_text.isascii() and limit_text.isdecimal()):
        yield DoctorRow(
            area="transactions",
            check="outage",
            status=Status.NOTE,
            detail=f"{MAX_TIMEOUT} is not known: {facts.settings_failure or 'the broker does not tell it'}",
            action=_build_settings_grant(question),
        )
        return
    limit_ms = int(limit_text)
    if ours > limit_ms:
        yield DoctorRow(
            area="transactions",
            check="outage",
            status=Status.FAIL if facts.plan.modes != (Mode.TWO_PHASE,) else Status.NOTE,
            detail=f"transaction.timeout.ms is {format_duration(ours)}, above the broker's "
            f"{format_duration(limit_ms)}",
            action=f"lower transaction.timeout.ms, or raise {MAX_TIMEOUT}",
        )
        return
    usable = next((mode for mode in facts.plan.modes if not explain_obstacle(mode, facts)), None)
    detail = (
        f"of any length: a prepared transaction of {usable.value} never expires"
        if usable is not None and usable.never_expires
        else f"{format_duration(ours)} at most (transaction.timeout.ms); {format_duration(limit_ms)} is the "
        "broker's limit"
    )
    yield DoctorRow(area="transactions", check="outage", status=Status.OK, detail=detail)


def _build_settings_grant(question: Question) -> str:
    """Return the command that lets the principal read settings; empty if no right is missing."""
    if not question.facts.settings_denied:
        return ""
    return build_grant(question, CLUSTER, (AclOperation.DESCRIBE_CONFIGS,))


# ---- rights


def _check_rights(question: Question) -> Iterator[DoctorRow]:
    needs = {
        (need.type, need.operation): [role for role in question.roles if need in NEEDS[role]]
        for role in question.roles
        for need in NEEDS[role]
    }
    types = dict.fromkeys(type_ for type_, _ in needs)
    for type_ in types:
        resources = [each for each in question.facts.rights if each.type is type_]
        operations = [operation for other, operation in needs if other is type_]
        if not resources and type_ in (AclResource.TOPIC, AclResource.TRANSACTIONAL_ID):
            option = _OPTIONS[type_]
            yield DoctorRow(
                area="rights",
                check=f"on {_WORDS[type_]}s",
                status=Status.NOTE,
                detail="not checked",
                action=f"name one with {option}",
            )
        for resource in resources:
            yield from _assess_resource(question, resource, operations)


def _assess_resource(
    question: Question, resource: Resource, operations: Collection[AclOperation]
) -> Iterator[DoctorRow]:
    rights = question.facts.rights[resource]
    on = "the cluster" if resource.type is AclResource.CLUSTER else f"{_WORDS[resource.type]} {resource.name}"
    for operation in operations:
        if operation is AclOperation.TWO_PHASE_COMMIT and not _offers_two_phase(question.facts):
            continue  # There is nothing to grant: the row of the mode says so.
        status, detail, action = _assess_operation(question, resource, rights, operation)
        yield DoctorRow(
            area="rights",
            check=f"{format_operation(operation)} on {on}",
            status=status,
            detail=detail,
            action=action,
        )


def _assess_operation(
    question: Question, resource: Resource, rights: ResourceRights, operation: AclOperation
) -> tuple[Status, str, str]:
    needing = [
        role.value
        for role in question.roles
        if any(need.type is resource.type and need.operation is operation for need in NEEDS[role])
    ]
    who = ", ".join(needing)
    if operation in rights.allowed:
        return Status.OK, who, ""
    if operation in rights.denied:
        if operation is AclOperation.TWO_PHASE_COMMIT and _is_switched_off(question.facts):
            return Status.UNKNOWN, f"not known: the broker's setting {TWO_PHASE_SWITCH} is false", ""
        is_optional = operation is AclOperation.TWO_PHASE_COMMIT and any(
            not mode.never_expires for mode in question.facts.plan.modes
        )
        command = build_grant(question, resource, _list_missing(question, resource))
        is_sure = (
            operation is not AclOperation.TWO_PHASE_COMMIT or TWO_PHASE_SWITCH in question.facts.settings
        )
        or_else = "" if is_sure else f", or the broker's setting {TWO_PHASE_SWITCH} is false"
        return (
            Status.NOTE if is_optional else Status.FAIL,
            f"missing, or denied by a rule{or_else}; needed by {who}",
            command,
        )
    return Status.UNKNOWN, f"not known: {rights.unknown_because}", ""


def build_grant(question: Question, resource: Resource, operations: Iterable[AclOperation]) -> str:
    """Return the command that grants operations, for an administrator to run."""
    options = [_OPTIONS[resource.type]]
    if resource.type is not AclResource.CLUSTER:
        options.append(resource.name)
    for operation in operations:
        options += ["--operation", format_operation(operation)]
    principal = question.facts.login.principal or "User:NAME"
    create = ("tallystick", "acls", "create", "--bootstrap-server", question.bootstrap)
    return shlex.join((*create, "--allow-principal", principal, *options))


def _list_missing(question: Question, resource: Resource) -> list[AclOperation]:
    rights = question.facts.rights[resource]
    needed = dict.fromkeys(
        need.operation for role in question.roles for need in NEEDS[role] if need.type is resource.type
    )
    missing = [operation for operation in needed if operation in rights.denied]
    two_phase = AclOperation.TWO_PHASE_COMMIT
    if two_phase in needed and two_phase not in rights.allowed and two_phase not in missing:
        missing += [two_phase] if Mode.TWO_PHASE in question.facts.plan.modes else []
    if not _offers_two_phase(question.facts) or _is_switched_off(question.facts):
        missing = [operation for operation in missing if operation is not two_phase]
    # Read, Write, Delete and Alter imply Describe (StandardAuthorizer).
    return [each for each in missing if each is not AclOperation.DESCRIBE or missing == [each]]


def format_operation(operation: AclOperation) -> str:
    """Return Kafka's spelling, such as TwoPhaseCommit."""
    return operation.name.title().replace("_", "")


def _offers_two_phase(facts: DoctorFacts) -> bool:
    offer = facts.capabilities
    return offer is not None and find_missing_capability(Mode.TWO_PHASE_RESUME, offer) is None


def _is_switched_off(facts: DoctorFacts) -> bool:
    """Return whether the broker refuses two-phase commit to everyone, with the code of a missing right."""
    return facts.settings.get(TWO_PHASE_SWITCH) == "false"


_WORDS: Final = {
    AclResource.TOPIC: "topic",
    AclResource.GROUP: "group",
    AclResource.TRANSACTIONAL_ID: "transactional id",
}
_OPTIONS: Final = {
    AclResource.TOPIC: "--topic",
    AclResource.GROUP: "--group",
    AclResource.TRANSACTIONAL_ID: "--transactional-id",
    AclResource.CLUSTER: "--cluster",
}
_CHECKS: Final[tuple[Callable[[Question], Iterator[DoctorRow]], ...]] = (
    _check_tls,
    _check_login,
    _check_apis,
    _check_features,
    _check_mode,
    _check_timeout,
    _check_rights,
)
