"""The command line on an Apache Kafka with StandardAuthorizer: rights, and a transaction decided by hand."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.servers import apache_kafka

from tallystick.cli.main import main

pytestmark = [pytest.mark.gate(0), pytest.mark.kafka, pytest.mark.server]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if (lack := apache_kafka.find_missing()) is not None:
        pytest.skip(lack)
    directory: Path = tmp_path_factory.mktemp("kafka")
    with apache_kafka.ApacheKafka(directory=directory, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def run(node: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def ran(*words: str, lines: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        capfd.readouterr()
        code = main([*words, "--bootstrap-server", node.bootstrap])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return ran


def test_rights_are_granted_listed_and_taken_back(run: Run) -> None:
    """KIP-939 "ACL Changes": TWO_PHASE_COMMIT is an operation of its own on a transactional id."""
    grant = (
        "--allow-principal",
        "User:pay",
        "--transactional-id",
        "pay-",
        "--resource-pattern-type",
        "prefixed",
    )
    code, _, err = run("acls", "create", "--operation", "Write", "--operation", "two_phase_commit", *grant)
    assert code == 0, err
    assert (
        run("acls", "create", "--operation", "Read", "--deny-principal", "User:eve", "--topic", "t")[0] == 0
    )
    rows = json.loads(run("acls", "list", "--transactional-id", "pay-7", "--output", "json")[1])
    assert {(row["Operation"], row["PatternType"], row["Permission"]) for row in rows} == {
        ("Write", "Prefixed", "Allow"),
        ("TwoPhaseCommit", "Prefixed", "Allow"),
    }
    code, out, _ = run("acls", "list", "--principal", "User:eve")
    assert out.splitlines()[1].split() == ["Topic", "t", "Literal", "User:eve", "*", "Read", "Deny"]
    code, _, err = run(
        "acls", "create", "--operation", "TwoPhaseCommit", "--allow-principal", "pay", "--topic", "t"
    )
    assert code == 1
    assert "CreateAcls" in err
    take = ("acls", "delete", "--transactional-id", "pay-", "--resource-pattern-type", "prefixed")
    assert run(*take)[0] == 5
    assert run(*take, "--operation", "TwoPhaseCommit", "--yes")[0] == 0
    rows = json.loads(run("acls", "list", "--output", "json")[1])
    assert {row["Operation"] for row in rows} == {"Write", "Read"}


def test_a_transaction_is_decided_by_hand_in_mode_resume(run: Run) -> None:
    """[ADM-4] Kafka 4.3 offers neither 2pc nor keep; the second half resumes what the first prepared."""
    assert run("topics", "create", "--topic", "t", "--partitions", "1", "--replication-factor", "1")[0] == 0
    prepare = ("produce", "t", "--transactional-id", "hand", "--prepare-only")
    code, out, err = run(*prepare, lines="a\n")
    assert (code, out) == (1, "")
    assert "unstable.api.versions.enable" in err
    code, state, err = run(*prepare, "--mode", "resume", lines="a\nb\n")
    assert code == 0, err
    complete = ("transactions", "complete", "hand", state.strip(), "--mode", "resume", "--output", "json")
    code, out, err = run(*complete, "--yes")
    assert code == 0, err
    assert json.loads(out)[0]["Result"] == "committed"
    code, out, _ = run(*complete, "--yes")
    assert (code, json.loads(out)[0]["Result"]) == (0, "committed")
    read = ("consume", "t", "--from-beginning", "--isolation-level", "read_committed", "--max-messages", "2")
    assert run(*read, "--timeout-ms", "20000")[1] == "a\nb\n"
