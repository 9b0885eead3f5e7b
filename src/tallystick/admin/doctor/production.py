"""The lines of docs/operate/production-checklist.md, and what a client can see of each. Pure.

Page and table have the same lines under the same ids; tests/unit/admin/test_production_checks.py holds them
to each other. A line that no client can see says how to look.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from tallystick.admin.doctor.checks import (
    TWO_PHASE_SWITCH,
    DoctorRow,
    Question,
    Status,
    assess,
    explain_obstacle,
    format_duration,
)
from tallystick.client.transactions.modes import Mode
from tallystick.kernel.value import Value

FLUSH_POLICY: Final = "flush.policy"
AUTHORIZER: Final = "authorizer.class.name"
AUTO_CREATE: Final = "auto.create.topics.enable"
METRICS: Final = "metrics.listener"
SETTINGS: Final = (FLUSH_POLICY, AUTHORIZER, AUTO_CREATE, METRICS)
"""Settings of a broker that lines are judged by, and no other check."""

_CLUSTER: Final = re.compile(r"\bB\b")
_RESOLVE: Final = "tallystick transactions resolve B --store URL"


class ProductionFacts(Value, kw_only=True):
    """Facts beside the cluster's answers.

    open_files  files with secrets, named by the client's settings, that other users of the machine may read
    isolation   isolation.level of the client's settings; empty: not set there
    """

    open_files: tuple[str, ...] = ()
    isolation: str = ""


class ProductionQuestion(Value):
    """The cluster's facts and the others."""

    cluster: Question
    facts: ProductionFacts

    @property
    def is_answered(self) -> bool:
        """Whether any broker has answered."""
        return any(not server.failure for server in self.cluster.facts.servers)


Judgement = tuple[Status, str]
Probe = Callable[[ProductionQuestion], Judgement]


class ChecklistLine(Value, kw_only=True):
    """One line of the page.

    title  its words in bold
    mend   what a person does where the probe finds that the line does not hold
    look   what a person does where not everything can be seen; B stands for the cluster's options
    probe  judges it; None: no client can see it
    """

    id: str
    title: str
    look: str
    probe: Probe | None = None
    mend: str = ""


def assess_production(question: ProductionQuestion) -> list[DoctorRow]:
    """Return a row for each line of the page, behind those of connections that failed."""
    rows = [] if question.is_answered else assess(question.cluster)
    return [*rows, *(_assess_line(line, question) for line in CHECKLIST)]


def _assess_line(line: ChecklistLine, question: ProductionQuestion) -> DoctorRow:
    status, detail = (Status.LOOK, "") if line.probe is None else line.probe(question)
    cluster = f"--bootstrap-server {question.cluster.bootstrap}"
    look = f"look yourself: {_CLUSTER.sub(cluster, line.look)}"
    if status in (Status.LOOK, Status.UNKNOWN):
        detail = "; ".join(each for each in (detail, look) if each)
    return DoctorRow(
        area="production",
        check=f"{line.id} {line.title}",
        status=status,
        detail=detail,
        action=_CLUSTER.sub(cluster, line.mend) if status is Status.FAIL else "",
    )


# ---- probes


def _check_roles(question: ProductionQuestion) -> Judgement:
    if not question.is_answered:
        return Status.FAIL, "no broker answers"
    rows = assess(question.cluster)
    failing = [row.check for row in rows if row.status is Status.FAIL]
    if failing:
        return Status.FAIL, f"missing: {', '.join(failing)}"
    unseen = [row.check for row in rows if row.status is Status.UNKNOWN or row.detail == "not checked"]
    return (Status.LOOK, f"not known: {', '.join(unseen)}") if unseen else (Status.OK, "exits with 0")


def _check_mode(question: ProductionQuestion) -> Judgement:
    if not question.is_answered:
        return Status.UNKNOWN, ""
    facts = question.cluster.facts
    obstacle = explain_obstacle(Mode.TWO_PHASE, facts)
    for mode in facts.plan.modes:
        if mode.never_expires and not explain_obstacle(mode, facts):
            return Status.OK, f"{mode.value}: an outage may last"
    limit = format_duration(facts.plan.transaction_timeout_ms)
    return Status.LOOK, f"not 2pc ({obstacle or 'not planned'}): outages of up to {limit} are survived"


def _read_setting(question: ProductionQuestion, name: str) -> str | Judgement:
    """Return a broker's setting, or the judgement where it is not known."""
    facts = question.cluster.facts
    if not question.is_answered:
        return Status.UNKNOWN, ""
    if facts.settings_failure:
        return Status.UNKNOWN, facts.settings_failure
    if FLUSH_POLICY not in facts.settings:
        return Status.LOOK, "this is not tallystick's broker"
    return facts.settings.get(name) or ""


def _check_two_phase(question: ProductionQuestion) -> Judgement:
    return _compare(question, TWO_PHASE_SWITCH, "true")


def _check_flush(question: ProductionQuestion) -> Judgement:
    return _compare(question, FLUSH_POLICY, "ack")


def _compare(question: ProductionQuestion, name: str, advised: str) -> Judgement:
    value = _read_setting(question, name)
    if not isinstance(value, str):
        return value
    return (Status.OK if value == advised else Status.FAIL), f"{name}={value}"


def _check_login(question: ProductionQuestion) -> Judgement:
    protocol = question.cluster.facts.login.protocol
    if not question.is_answered:
        return Status.UNKNOWN, ""
    return (Status.OK if protocol in ("SASL_SSL", "SSL") else Status.FAIL), f"security.protocol={protocol}"


def _check_acls(question: ProductionQuestion) -> Judgement:
    value = _read_setting(question, AUTHORIZER)
    if not isinstance(value, str):
        return value
    if not value:
        return Status.FAIL, f"{AUTHORIZER} is not set: every client may do everything"
    return Status.LOOK, "there are ACLs"


def _check_secrets(question: ProductionQuestion) -> Judgement:
    files = question.facts.open_files
    if files:
        return Status.FAIL, f"other users of this machine may read {', '.join(files)}"
    return Status.LOOK, "those of the client's settings are"


def _check_topics(question: ProductionQuestion) -> Judgement:
    value = _read_setting(question, AUTO_CREATE)
    if not isinstance(value, str):
        return value
    return (Status.OK if value == "false" else Status.LOOK), f"{AUTO_CREATE}={value}"


def _check_isolation(question: ProductionQuestion) -> Judgement:
    isolation = question.facts.isolation
    if not isolation:
        return Status.LOOK, ""
    status = Status.OK if isolation == "read_committed" else Status.FAIL
    return status, f"isolation.level={isolation}"


def _check_metrics(question: ProductionQuestion) -> Judgement:
    value = _read_setting(question, METRICS)
    if isinstance(value, str) and value:
        return Status.LOOK, f"the broker's are at {value}"
    return value if not isinstance(value, str) else (Status.LOOK, "the broker has none (metrics.listener)")


_MENDS: Final = {
    "C1": "tallystick doctor B, without --production, says how",
    "C3": f"set {TWO_PHASE_SWITCH}=true at the broker",
    "C4": "set flush.policy=ack at the broker",
    "C5": "docs/how-to/tls.md; then security.protocol=SASL_SSL or SSL in --command-config FILE",
    "C6": f"set {AUTHORIZER} at the broker, then tallystick acls create",
    "C8": "chmod 600, and another secret if those users are not trusted",
    "R1": "set isolation.level=read_committed",
}
CHECKLIST: Final[Sequence[ChecklistLine]] = tuple(
    ChecklistLine(id=id_, title=title, look=look, probe=probe, mend=_MENDS.get(id_, ""))
    for id_, title, probe, look in (
        (
            "C1",
            "The doctor finds what the service needs",
            _check_roles,
            "tallystick doctor B --role writer --transactional-id ID --topic T, under the service's login",
        ),
        ("C2", "The mode is known", _check_mode, "transaction.timeout.ms is above the longest outage"),
        (
            "C3",
            "Two-phase commit is on",
            _check_two_phase,
            f"{TWO_PHASE_SWITCH}=true at the broker",
        ),
        (
            "C4",
            "Acknowledged is on the disk",
            _check_flush,
            "flush.policy=ack; on Apache Kafka, replicas",
        ),
        ("C5", "TLS and logins", _check_login, "security.protocol=SASL_SSL or SSL in --command-config FILE"),
        (
            "C6",
            "ACLs give TwoPhaseCommit for the service's ids only",
            _check_acls,
            "tallystick acls list B",
        ),
        ("C7", "Backups are made", None, "the newest copy of the data directory, and that it starts"),
        (
            "C8",
            "Keys and password files are their owner's alone",
            _check_secrets,
            'the broker\'s log at its start says "other users of this machine may read" of each that is not',
        ),
        ("C9", "Topics are created before the first send", _check_topics, "tallystick topics list B"),
        ("D1", "Tables come from a migration", None, "grep for create() in the service's start"),
        ("D2", "Commits wait for a replica", None, "SHOW synchronous_standby_names (PostgreSQL)"),
        ("D3", "The connection pool has room", None, "its size: all writers, and two more with leases"),
        ("D4", "Backups of both sides belong together", None, f"{_RESOLVE} --dry-run, after a restore"),
        (
            "S1",
            "Transactional ids are stable, or leased",
            None,
            "tallystick transactions list B, twice",
        ),
        ("S2", "recover() runs at the start", None, "grep for recover( before the first request is served"),
        ("S3", "Blocks are short", None, "the step times of dual writes on the console or in the metrics"),
        ("S4", "WriteInDoubt is handled", None, "grep for run(, transactional, WriteInDoubt"),
        (
            "S5",
            "Processes end with SIGTERM and close()",
            None,
            "kill -TERM one of them in the middle of a write",
        ),
        ("S6", "Pools are created after the fork", None, "the web server's hook that runs after a fork"),
        (
            "R1",
            "Consumers read committed",
            _check_isolation,
            "grep for isolation.level in each consumer's settings",
        ),
        (
            "O1",
            "Console or metrics run, with alerts",
            _check_metrics,
            "the rules of deploy/monitoring in Prometheus, under Alerts",
        ),
        ("O2", "Leases that ended are resolved", None, f"crontab -l names {_RESOLVE} --only-expired"),
        ("O3", "Someone has practised", None, f"kill -9 a process in a write, then {_RESOLVE} --dry-run"),
    )
)
