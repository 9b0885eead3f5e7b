"""The judgement of `tallystick doctor`, without sockets: facts in, rows out."""

import shlex
from collections.abc import Mapping
from typing import Any

import pytest

from tallystick.admin.doctor.checks import (
    MAX_TIMEOUT,
    TWO_PHASE_SWITCH,
    DoctorRow,
    Question,
    Status,
    assess,
    format_duration,
)
from tallystick.admin.doctor.facts import (
    CLUSTER,
    ClientPlan,
    DoctorFacts,
    FailureCause,
    LoginFacts,
    Resource,
    ResourceRights,
    ServerFacts,
    TlsSession,
)
from tallystick.admin.doctor.gather import parse_operations
from tallystick.admin.doctor.roles import Role
from tallystick.cli.commands.doctor import choose_exit
from tallystick.cli.exits import ExitCode
from tallystick.client.transactions.modes import ClusterCapabilities, Mode
from tallystick.protocol.acls import AclOperation as Op
from tallystick.protocol.acls import AclResource
from tallystick.protocol.apis import API_SPECS

DAY_MS = 86_400_000
ID, TOPIC = Resource(AclResource.TRANSACTIONAL_ID, "pay 1"), Resource(AclResource.TOPIC, "orders")
OURS = ClusterCapabilities(init_version=6, transaction_version=2, can_describe=True)
APACHE = ClusterCapabilities(init_version=5, transaction_version=2, can_describe=True)
ALL = ResourceRights(allowed=frozenset(Op))
ALICE = LoginFacts(protocol="SASL_SSL", mechanism="PLAIN", principal="User:alice")
DEFAULTS: Mapping[str, Any] = {
    "servers": (ServerFacts(address="b:9092"),),
    "login": ALICE,
    "usable_apis": dict.fromkeys(API_SPECS, 0),
    "features": {"transaction.version": 2},
    "capabilities": OURS,
    "settings": {MAX_TIMEOUT: "900000", TWO_PHASE_SWITCH: "true"},
    "rights": {CLUSTER: ALL, ID: ALL, TOPIC: ALL},
}


def ask(*roles: Role, **changes: Any) -> dict[str, DoctorRow]:
    question = Question(
        facts=DoctorFacts(**{**DEFAULTS, **changes}),
        roles=roles or tuple(Role),
        bootstrap="b:9092",
        now_ms=0,
    )
    return {finding.check: finding for finding in assess(question)}


def test_a_cluster_with_everything_fails_nothing() -> None:
    findings = ask()
    assert {finding.status for finding in findings.values()} == {Status.OK, Status.NOTE}
    assert [finding.check for finding in findings.values() if finding.status is Status.NOTE] == ["TLS"]
    assert findings["mode"].detail == "2pc"
    assert findings["outage"].detail.startswith("of any length")
    assert choose_exit(list(findings.values())) is ExitCode.DONE


def test_without_an_answer_only_the_connection_is_judged() -> None:
    findings = ask(servers=(ServerFacts(address="b:9092", failure="refused"),))
    assert list(findings) == ["b:9092"]
    assert findings["b:9092"].status is Status.FAIL
    assert findings["b:9092"].action


@pytest.mark.parametrize(
    ("cause", "login", "words"),
    [
        (FailureCause.UNREACHABLE, ALICE, ("this address", "firewall")),
        (FailureCause.TLS, ALICE, ("certificates", "ssl.*")),
        (FailureCause.LOGIN, ALICE, ("sasl.username", "sasl.password", "sasl.mechanism")),
        (
            FailureCause.LOGIN,
            LoginFacts(protocol="SASL_SSL", mechanism="OAUTHBEARER"),
            ("token", "sasl.oauthbearer.*"),
        ),
    ],
)
def test_the_advice_is_about_what_the_connection_failed_at(
    cause: FailureCause, login: LoginFacts, words: tuple[str, ...]
) -> None:
    row = ask(servers=(ServerFacts(address="b:9092", failure="no", cause=cause),), login=login)["b:9092"]
    assert all(word in row.action for word in words), row.action
    assert ("this address" in row.action) is (cause is FailureCause.UNREACHABLE)


def test_an_address_that_was_not_tried_needs_no_advice() -> None:
    server = ServerFacts(address="b:9092", failure="not tried", cause=FailureCause.NOT_TRIED)
    assert ask(servers=(server,))["b:9092"].action == ""


def test_one_server_that_answers_is_enough() -> None:
    findings = ask(servers=(ServerFacts(address="a:1", failure="refused"), ServerFacts(address="b:2")))
    assert (findings["a:1"].status, findings["b:2"].status) == (Status.NOTE, Status.OK)


@pytest.mark.parametrize(("days", "status"), [(90, Status.OK), (3, Status.NOTE)])
def test_a_certificate_that_expires_soon_is_noted(days: int, status: Status) -> None:
    tls = TlsSession(version="TLSv1.3", names=("b",), expires_at_ms=days * DAY_MS)
    row = ask(servers=(ServerFacts(address="b:9092", tls=tls),))["TLS"]
    assert (row.status, row.detail) == (status, f"TLSv1.3, b, {days} days left")


MODE_CASES = [
    ({}, (Mode.TWO_PHASE,), Status.OK, "2pc"),
    ({"capabilities": APACHE}, (Mode.TWO_PHASE,), Status.FAIL, "resume: 2pc needs InitProducerId version 6"),
    ({"capabilities": APACHE}, (Mode.TWO_PHASE, Mode.RESUME), Status.OK, "resume: 2pc needs"),
    ({"settings": {TWO_PHASE_SWITCH: "false"}}, (Mode.KEEP,), Status.OK, "keep: 2pc needs the broker's"),
    (
        {"rights": {ID: ResourceRights(denied=frozenset({Op.TWO_PHASE_COMMIT}))}},
        (Mode.TWO_PHASE,),
        Status.FAIL,
        "keep: 2pc needs the right TwoPhaseCommit on transactional id pay 1",
    ),
    ({"rights": {}}, (Mode.TWO_PHASE,), Status.OK, "2pc, with the right TwoPhaseCommit"),
]


@pytest.mark.parametrize(("changes", "modes", "status", "detail"), MODE_CASES)
def test_the_strongest_mode_is_told_and_why_no_stronger_one(
    changes: dict[str, Any], modes: tuple[Mode, ...], status: Status, detail: str
) -> None:
    row = ask(Role.WRITER, plan=ClientPlan(modes=modes), **changes)["mode"]
    assert row.status is status
    assert row.detail.startswith(detail)
    assert bool(row.action) == (status is Status.FAIL)


def test_an_outage_is_told_in_units_of_people() -> None:
    plan = ClientPlan(modes=(Mode.RESUME,), transaction_timeout_ms=600_000)
    assert ask(plan=plan, capabilities=APACHE)["outage"].detail.startswith("10 min at most")
    plan = ClientPlan(modes=(Mode.RESUME,), transaction_timeout_ms=1_000_000)
    assert ask(plan=plan, capabilities=APACHE)["outage"].status is Status.FAIL
    durations = [
        (0, "0 ms"),
        (1_500, "1.5 s"),
        (900_000, "15 min"),
        (3_600_000, "1 h"),
        (7 * DAY_MS, "7 days"),
    ]
    assert [format_duration(length) for length, _ in durations] == [text for _, text in durations]


def test_what_is_missing_on_a_resource_is_granted_by_one_command() -> None:
    nothing = ResourceRights(denied=frozenset({Op.WRITE, Op.DESCRIBE}), unknown_because="Write first")
    findings = ask(rights={ID: nothing})
    row = findings["Write on transactional id pay 1"]
    assert row.status is Status.FAIL
    assert shlex.split(row.action)[3:] == [
        *("--bootstrap-server", "b:9092", "--allow-principal", "User:alice", "--transactional-id", "pay 1"),
        *("--operation", "Write", "--operation", "TwoPhaseCommit"),
    ]
    assert findings["TwoPhaseCommit on transactional id pay 1"].status is Status.UNKNOWN
    assert findings["on topics"].action == "name one with --topic"


def test_a_role_is_judged_by_its_own_needs() -> None:
    none = ResourceRights(denied=frozenset(Op))
    rights = {CLUSTER: none, ID: ALL, TOPIC: none}
    assert "Alter on the cluster" not in ask(Role.WRITER, rights=rights)
    assert "Read on topic orders" not in ask(Role.WRITER, rights=rights)
    assert "Write on topic orders" not in ask(Role.RECOVERY, rights=rights)
    assert "mode" not in ask(Role.TOOLS, rights=rights)
    assert ask(Role.TOOLS, rights=rights)["Alter on the cluster"].action.endswith(
        "--cluster --operation Alter"
    )


def test_a_weaker_mode_needs_no_right_of_two_phase_commit() -> None:
    lacking = ResourceRights(allowed=frozenset({Op.WRITE}), denied=frozenset({Op.TWO_PHASE_COMMIT}))
    plan = ClientPlan(modes=(Mode.TWO_PHASE, Mode.KEEP))
    row = ask(Role.WRITER, rights={ID: lacking}, plan=plan)["TwoPhaseCommit on transactional id pay 1"]
    assert row.status is Status.NOTE
    assert "TwoPhaseCommit on transactional id pay 1" not in ask(Role.WRITER, capabilities=APACHE)


def test_what_cannot_be_known_is_neither_there_nor_missing() -> None:
    findings = ask(Role.RECOVERY, rights={ID: ResourceRights(unknown_because="timed out")})
    assert choose_exit(list(findings.values())) is ExitCode.INCOMPLETE


def test_authorized_operations_are_bits_and_may_not_be_told() -> None:
    """KIP-430: bit n is the operation with number n; -2147483648 is "not told"."""
    assert parse_operations(1 << 3 | 1 << 8).allowed == {Op.READ, Op.DESCRIBE}
    assert Op.WRITE in parse_operations(0).denied
    unknown = parse_operations(-(2**31))
    assert not unknown.allowed | unknown.denied
    assert unknown.unknown_because


NO_TWO_PHASE = ResourceRights(
    allowed=frozenset(Op) - {Op.TWO_PHASE_COMMIT}, denied=frozenset((Op.TWO_PHASE_COMMIT,))
)


def test_a_broker_without_two_phase_commit_does_not_tell_the_right_to_it() -> None:
    """KIP-939: error 53 is the answer where the setting is false, too, whatever the rights are."""
    settings = {MAX_TIMEOUT: "900000", TWO_PHASE_SWITCH: "false"}
    plan = ClientPlan(modes=(Mode.TWO_PHASE, Mode.KEEP))
    findings = ask(Role.WRITER, settings=settings, plan=plan, rights={ID: NO_TWO_PHASE, TOPIC: ALL})
    row = findings["TwoPhaseCommit on transactional id pay 1"]
    assert (row.status, row.action) == (Status.UNKNOWN, "")
    assert f"{TWO_PHASE_SWITCH} is false" in row.detail
    assert f"2pc needs the broker's setting {TWO_PHASE_SWITCH}=true" in findings["mode"].detail


def test_where_the_setting_is_not_known_it_may_be_what_refuses_two_phase_commit() -> None:
    findings = ask(Role.WRITER, settings={}, rights={ID: NO_TWO_PHASE, TOPIC: ALL})
    row = findings["TwoPhaseCommit on transactional id pay 1"]
    assert row.status is Status.FAIL
    causes = f"missing, or denied by a rule, or the broker's setting {TWO_PHASE_SWITCH} is false"
    assert row.detail == f"{causes}; needed by writer"
    assert "--operation TwoPhaseCommit" in row.action


@pytest.mark.parametrize("limit", [None, "", "unlimited", "-1", "9e9"])
def test_a_limit_that_is_no_number_is_not_known(limit: str | None) -> None:
    row = ask(settings={MAX_TIMEOUT: limit, TWO_PHASE_SWITCH: "true"})["outage"]
    assert row.status is Status.NOTE
    assert "is not known" in row.detail
