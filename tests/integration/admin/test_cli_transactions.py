"""`tallystick transactions`: what it prints, what it asks, and the exit codes scripts rely on."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.hanging import hang
from tests.support.raw_producer import RawProducer, make_topic

from tallystick.cli.commands.transactions import _escape, _format_time
from tallystick.cli.main import main
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server

Ran = tuple[int, str, str]
Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(transaction_partition_verification_enable=False) as running:
        with RawProducer(running, "first") as first:
            first.find()
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> Ran:
        capsys.readouterr()
        code = main(["transactions", *words, "--bootstrap-server", broker.bootstrap_servers])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return ran


def rows(ran: Ran) -> Any:
    return json.loads(ran[1])


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    make_topic(broker, name, 2)
    return name


def test_list_and_describe_in_both_forms(broker: EmbeddedBroker, run: Run, topic: str) -> None:
    with RawProducer(broker, "[cli]") as producer:
        producer.init()
        assert producer.write(topic, 1, "a") == 0
        pattern = ("--transactional-id-pattern", r"\[cli\]")
        code, out, _ = run("list", "--coordinator", "1", *pattern)
        assert code == 0
        heading, line = out.splitlines()
        assert heading.split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
        assert line.split() == ["[cli]", "1", str(producer.pair[0]), "Ongoing"]
        (row,) = rows(run("list", "--runningLongerThanMs", "0", *pattern, "--output", "json"))
        assert (row["ProducerId"], row["TransactionState"]) == (producer.pair[0], "Ongoing")
        assert rows(run("list", "--duration-filter", "3600000", *pattern, "--output=json")) == []
        (found,) = rows(run("describe", "--transactionalId", "[cli]", "--output", "json"))
        assert found["TopicPartitions"] == [f"{topic}-1"]
        assert found["TransactionTimeoutMs"] == 60_000
        assert 0 <= found["TransactionDurationMs"] < 60_000
        code, out, _ = run("describe-producers", "--topic", topic, "--partition", "1", "--broker", "1")
        assert (code, out.split()[-1]) == (0, "0")
        producer.end()


def test_the_history_of_an_id_in_both_forms(broker: EmbeddedBroker, run: Run, topic: str) -> None:
    with RawProducer(broker, "told") as producer:
        producer.init()
        assert producer.write(topic, 0, "a") == 0
        producer.end()
        producer.completed()
        at = ("describe", "--transactional-id", "told")
        assert rows(run(*at, "--output", "json"))[0]["History"] is None
        (found,) = rows(run(*at, "--history", "--output", "json"))
        steps = ["initialized", "begun", "committed", "completed"]
        assert [step["Transition"] for step in found["History"]] == steps
        assert found["History"][0]["Address"].startswith("127.0.0.1:")
        assert found["History"][3]["ClientId"] is None
        code, out, _ = run(*at, "--history")
        assert code == 0
        table = out.partition("oldest first:\n")[2].splitlines()
        assert table[0].split()[:3] == ["Time", "Transition", "State"]
        assert [line.split()[2] for line in table[1:]] == steps


def test_what_a_client_calls_itself_does_not_command_the_terminal() -> None:
    assert _escape("orders\x1b[2J") == "orders\\x1b[2J"
    assert _escape("bestellungen-größe") == "bestellungen-größe"
    assert _escape(7) == 7
    assert _format_time(-1) == "-1"
    assert _format_time(2**62) == str(2**62)
    assert _format_time(1_700_000_000_001) == "2023-11-14 22:13:20.001+00:00"


def test_what_is_wrong_is_one_line_and_its_exit_code(run: Run) -> None:
    code, out, err = run("describe", "--transactional-id", "nobody")
    assert (code, out) == (1, "")
    assert "TRANSACTIONAL_ID_NOT_FOUND" in err
    assert run("find-hanging", "--partition", "0")[0] == 2
    assert run("abort", "--topic", "t", "--partition", "0")[0] == 2
    assert run("abort", "--topic", "t", "--partition", "0", "--producer-id", "7")[0] == 2
    assert run("list", "--command-config", "/no/such/file")[0] == 2
    assert run("list", "--timeout-ms", "never")[0] == 2
    code, _, err = run("list", "--coordinator", "9")
    assert code == 1
    assert "the cluster lists 1" in err
    code, _, err = run("list", "--state", "Sleeping")
    assert code == 2
    assert "--state Sleeping: is not one of Empty, Ongoing" in err


def test_a_hanging_transaction_is_found_and_aborted_after_a_yes(
    broker: EmbeddedBroker, run: Run, topic: str, tmp_path: Path
) -> None:
    """[ADM-1] [ADM-3]"""
    at = ("--topic", topic, "--partition", "0")
    assert run("find-hanging", "--topic", topic)[0] == 0
    start = hang(broker.bootstrap_servers, TopicPartition(topic, 0), 999_001)
    code, out, _ = run("find-hanging", *at, "--max-transaction-timeout", "5", "--broker-id", "1")
    assert code == 3
    assert out.splitlines()[1].split()[:7] == ["hanging", topic, "0", "999001", "0", "-1", str(start)]
    assert "60" in out
    abort = ("abort", *at, "--start-offset", str(start))
    code, out, err = run(*abort)
    assert (code, out) == (5, "")
    assert "never be read" in err
    assert "--yes" in err
    assert run("find-hanging", *at)[0] == 3
    log = tmp_path / "audit.log"
    code, out, err = run(*abort, "--yes", "--audit-log", str(log), "--output", "json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["Result"], row["Guarded"]) == ("aborted", True)
    assert f"abort {topic}-0 offset {start} producer 999001/0: aborted" in log.read_text()
    assert "audit" in err
    assert run("find-hanging", *at)[0] == 0
    code, _, err = run(*abort, "--yes")
    assert code == 6
    assert "nothing is open there" in err


def test_what_is_prepared_is_told_apart_and_kept_unless_forced(
    broker: EmbeddedBroker, run: Run, topic: str
) -> None:
    at = ("--topic", topic, "--partition", "0")
    with RawProducer(broker, "prepared") as producer:
        producer.init(two_phase=True)
        assert producer.write(topic, 0, "a") == 0
        late = ("find-hanging", *at, "--max-transaction-timeout", "0", "--output", "json")
        (row,) = eventually(lambda: rows(run(*late)))
        assert (row["Verdict"], row["TransactionalId"]) == ("in doubt", "prepared")
        code, _, err = run("abort", *at, "--start-offset", "0", "--yes")
        assert code == 5
        assert "the other side may be committed" in err
        assert run("force-terminate", "--transactional-id", "prepared", "--yes")[0] == 5
        assert producer.describe().transaction_state == "Ongoing"
        assert run("forceTerminateTransaction", "--transactionalId", "prepared", "--yes", "--force")[0] == 0
        code, out, _ = run("describe", "--transactional-id", "prepared")
        assert code == 0
        assert "terminated" in out


def test_no_broker_is_an_error_within_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--bootstrap-server", "127.0.0.1:1", "--timeout-ms", "300")
    assert main(["transactions", "list", *at]) == 1
    assert "default.api.timeout.ms = 300" in capsys.readouterr().err
    assert main(["transactions", "list"]) == 2
    assert "--bootstrap-server" in capsys.readouterr().err
