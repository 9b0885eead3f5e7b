"""`tallystick doctor --production` "says line by line what is and is not as it advises"."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.admin.test_doctor_checks import ALICE, APACHE, DEFAULTS

from tallystick.admin.doctor.checks import MAX_TIMEOUT, TWO_PHASE_SWITCH, DoctorRow, Question, Status
from tallystick.admin.doctor.facts import DoctorFacts, LoginFacts, ServerFacts
from tallystick.admin.doctor.production import (
    AUTHORIZER,
    AUTO_CREATE,
    CHECKLIST,
    FLUSH_POLICY,
    METRICS,
    ProductionFacts,
    ProductionQuestion,
    assess_production,
)
from tallystick.admin.doctor.roles import Role
from tallystick.cli.commands.doctor import look_at_client
from tallystick.kernel.value import replace

PAGE = Path(__file__).parents[3] / "docs/operate/production-checklist.md"
SETTINGS: Mapping[str, str] = {
    MAX_TIMEOUT: "900000",
    TWO_PHASE_SWITCH: "true",
    FLUSH_POLICY: "ack",
    AUTHORIZER: "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    AUTO_CREATE: "false",
    METRICS: "127.0.0.1:9404",
}
GOOD = ProductionQuestion(
    Question(
        facts=DoctorFacts(**{**DEFAULTS, "settings": SETTINGS}),
        roles=tuple(Role),
        bootstrap="b:9092",
        now_ms=0,
    ),
    ProductionFacts(isolation="read_committed"),
)


def with_facts(**changes: Any) -> ProductionQuestion:
    return replace(GOOD, cluster=replace(GOOD.cluster, facts=replace(GOOD.cluster.facts, **changes)))


def with_setting(name: str, value: str) -> ProductionQuestion:
    return with_facts(settings={**SETTINGS, name: value})


def ask(question: ProductionQuestion) -> dict[str, DoctorRow]:
    """Return the rows by the ids of their lines."""
    return {row.check.partition(" ")[0]: row for row in assess_production(question)}


def test_page_and_probes_have_the_same_lines() -> None:
    """A line of one that the other lacks is not checked, or not advised."""
    text = PAGE.read_text()
    lines = re.findall(r"^- \*\*(\w\d) (.+?)\*\*", text, re.MULTILINE)
    assert lines == [(line.id, line.title) for line in CHECKLIST]
    assert len(lines) == len(re.findall(r"^- ", text, re.MULTILINE))


def test_what_can_be_seen_is_judged_and_all_else_says_how_to_look() -> None:
    rows = ask(GOOD)
    assert [id_ for id_, row in rows.items() if row.status is Status.OK] == [
        "C1",
        "C2",
        "C3",
        "C4",
        "C5",
        "C9",
        "R1",
    ]
    others = {id_: row for id_, row in rows.items() if row.status is not Status.OK}
    assert {row.status for row in others.values()} == {Status.LOOK}
    assert [row.check for row in others.values() if "look yourself: " not in row.detail] == []
    assert rows["D4"].detail == (
        "look yourself: tallystick transactions resolve --bootstrap-server b:9092 --store URL --dry-run, "
        "after a restore"
    )


NOT_AS_ADVISED = [
    ("C1", with_facts(rights={}, capabilities=APACHE), "missing: mode"),
    ("C3", with_setting(TWO_PHASE_SWITCH, "false"), "transaction.two.phase.commit.enable=false"),
    ("C4", with_setting(FLUSH_POLICY, "os"), "flush.policy=os"),
    ("C5", with_facts(login=LoginFacts()), "security.protocol=PLAINTEXT"),
    ("C5", with_facts(login=replace(ALICE, protocol="SASL_PLAINTEXT")), "security.protocol=SASL_PLAINTEXT"),
    ("C6", with_setting(AUTHORIZER, ""), "every client may do everything"),
    ("C8", replace(GOOD, facts=ProductionFacts(open_files=("/k.pem",))), "may read /k.pem"),
    ("R1", replace(GOOD, facts=ProductionFacts(isolation="read_uncommitted")), "read_uncommitted"),
]


@pytest.mark.parametrize(("id_", "question", "detail"), NOT_AS_ADVISED)
def test_what_is_not_as_the_page_advises_fails_with_what_to_do(
    id_: str, question: ProductionQuestion, detail: str
) -> None:
    row = ask(question)[id_]
    assert row.status is Status.FAIL
    assert detail in row.detail
    assert row.action


UNKNOWN_HERE = [
    ("C1", with_facts(rights={}), Status.LOOK),
    ("C2", with_facts(capabilities=APACHE), Status.LOOK),
    ("C3", with_facts(settings={}, settings_failure="DescribeConfigs is missing"), Status.UNKNOWN),
    ("C4", with_facts(settings={AUTO_CREATE: "true"}), Status.LOOK),  # Apache Kafka has no such setting
    ("C9", with_setting(AUTO_CREATE, "true"), Status.LOOK),
    ("R1", replace(GOOD, facts=ProductionFacts()), Status.LOOK),
    ("O1", with_setting(METRICS, ""), Status.LOOK),
]


@pytest.mark.parametrize(("id_", "question", "status"), UNKNOWN_HERE)
def test_what_is_not_known_is_not_called_well(id_: str, question: ProductionQuestion, status: Status) -> None:
    assert ask(question)[id_].status is status


def test_without_an_answer_nothing_of_the_cluster_is_called_well() -> None:
    rows = assess_production(with_facts(servers=(ServerFacts(address="b:9092", failure="refused"),)))
    assert (rows[0].check, rows[0].status) == ("b:9092", Status.FAIL)
    of_cluster = [row for row in rows if row.check.startswith("C")]
    assert Status.OK not in {row.status for row in of_cluster}


@pytest.mark.parametrize(
    ("mode", "password", "found"), [(0o644, "x", ["key", "file"]), (0o600, "x", []), (0o644, "", ["key"])]
)
def test_files_with_secrets_that_others_may_read_are_found(
    mode: int, password: str, found: list[str], tmp_path: Path
) -> None:
    config: dict[str, object] = {
        "ssl.key.location": str(tmp_path / "key"),
        "isolation.level": "read_committed",
    }
    if password:
        config["sasl.password"] = password
    for name in ("key", "file"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(mode)
    facts = look_at_client(config, tmp_path / "file")
    assert facts.open_files == tuple(str(tmp_path / name) for name in found)
    assert facts.isolation == "read_committed"
