"""`tallystick produce`, `consume` and `transactions complete`, as the processes a user starts."""

import io
import json
import os
import signal
import socketserver
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.support.reading import committed_records

from tallystick import Producer
from tallystick.admin.client import Admin
from tallystick.admin.topics import NewTopic
from tallystick.cli.commands import transactions
from tallystick.cli.main import main
from tallystick.client.transactions import engine
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.broker(
        in_process=False, transaction_two_phase_commit_enable=True, auto_create_topics_enable=False
    ),
]

LIMIT_S = 60
Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    name = str(request.node.name).translate({ord("["): "-", ord("]"): None})
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1)]).all()
    return name


def words(broker: EmbeddedBroker, *given: str) -> list[str]:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    return [sys.executable, "-m", "tallystick.cli.main", *given, *at]


def run(broker: EmbeddedBroker, *given: str, lines: str = "") -> Ran:
    """As a process of its own."""
    done = subprocess.run(
        words(broker, *given), input=lines, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert "Traceback" not in done.stderr
    return done


Inside = Callable[..., Ran]


@pytest.fixture
def inside(
    broker: EmbeddedBroker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Inside:
    """As `run`, in this process: one takes a second to start."""

    def ran(*given: str, lines: str = "") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        capfd.readouterr()
        code = main([*given, "--bootstrap-server", broker.bootstrap_servers])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        return Ran(list(given), code, printed.out, printed.err)

    return ran


def committed(broker: EmbeddedBroker, topic: str) -> list[str]:
    """What a reader of committed records gets, without the wait of `consume --timeout-ms` for more."""
    records = committed_records({"bootstrap.servers": broker.bootstrap_servers}, topic)
    return [(record.value or b"").decode() for record in records]


def consumed(ran: Inside, topic: str, *more: str) -> list[str]:
    """What `consume` prints of the committed records."""
    done = ran("consume", topic, "--from-beginning", "--isolation-level", "read_committed", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shown(ran: Inside, topic: str, count: int) -> list[dict[str, Any]]:
    """What `consume` prints of the first records, as JSON."""
    return [
        json.loads(line) for line in consumed(ran, topic, "--output", "json", "--max-messages", str(count))
    ]


def test_two_phase_commit_by_hand(broker: EmbeddedBroker, inside: Inside, topic: str, tmp_path: Path) -> None:
    """[ADM-4] [CLI-65] The walk-through of docs/command-line.md, KIP-939 in three processes."""
    prepare = ("produce", topic, "--transactional-id", topic, "--prepare-only")
    done = run(broker, *prepare, lines="a\nb\n")
    assert done.returncode == 0, done.stderr
    state = done.stdout.removesuffix("\n")
    assert f"transactions complete {topic} {state}" in done.stderr
    assert consumed(inside, topic, "--timeout-ms", "1000") == []
    again = inside(*prepare, lines="c\n")
    assert (again.returncode, again.stdout) == (5, "")
    assert f"a transaction is open, {state}" in again.stderr
    complete = ("transactions", "complete", topic)
    asked = inside(*complete, state)
    assert asked.returncode == 5
    assert "it will be committed" in asked.stderr
    assert committed(broker, topic) == []
    log = tmp_path / "audit.log"
    done = run(broker, *complete, state, "--yes", "--output", "json", "--audit-log", str(log))
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["FoundState"], row["State"], row["Result"]) == ("Ongoing", state, "committed")
    assert f"by state '{state}': committed" in log.read_text()
    assert consumed(inside, topic, "--max-messages", "2") == committed(broker, topic) == ["a", "b"]
    later = inside(*prepare, lines="c\n").stdout.strip()
    done = run(broker, *complete, state, "--yes")
    assert "it will be aborted" in done.stderr
    assert (done.returncode, done.stdout.split()[-1]) == (0, "aborted")
    assert committed(broker, topic) == ["a", "b"]
    again = inside(*complete, later, "--yes")
    assert (again.returncode, again.stdout.split()[-1]) == (6, "unknown")
    assert "The last transaction of the id was aborted" in again.stderr
    assert inside(*complete, "", "--yes").returncode == 0


@pytest.mark.parametrize(
    "given", [("force-terminate", "--force"), ("complete", "")], ids=["terminate", "complete"]
)
def test_what_began_since_the_question_is_not_ended(
    broker: EmbeddedBroker,
    inside: Inside,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, str],
) -> None:
    """What was confirmed is done, or nothing: the writer that goes on is not even fenced."""
    config = {
        "bootstrap.servers": broker.bootstrap_servers,
        "transactional.id": topic,
        "transaction.two.phase.commit.enable": True,
    }
    with Producer(config) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"shown").result()

        def go_on(_question: str, *, yes: bool) -> None:
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send(topic, b"begun since").result()

        monkeypatch.setattr(transactions, "confirm", go_on)
        done = inside("transactions", given[0], topic, given[1])
        assert (done.returncode, done.stdout) == (6, ""), done.stderr
        assert "nothing was done" in done.stderr
        producer.commit_transaction()
    assert committed(broker, topic) == ["shown", "begun since"]


@pytest.mark.parametrize("given", [("--mode", "keep"), ("--mode", "resume")], ids=["keep", "resume"])
def test_the_weaker_modes_say_what_they_do_not_promise(
    broker: EmbeddedBroker,
    inside: Inside,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str, ...],
) -> None:
    monkeypatch.setattr(engine, "_TOLD_MODES", set())  # each process says it once
    name = "-".join(given).strip("-")
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=name, partitions=1)]).all()
    done = inside("produce", name, "--transactional-id", name, "--prepare-only", *given, lines="a\n")
    assert "aborts a prepared transaction after transaction.timeout.ms" in caplog.text
    state = done.stdout.strip()
    assert inside("transactions", "complete", name, state, *given, "--yes").returncode == 0
    assert committed(broker, name) == ["a"]


@pytest.mark.gate(0)
def test_a_mode_that_the_broker_refuses_names_what_is_missing(topic: str, broker: EmbeddedBroker) -> None:
    with EmbeddedBroker(transaction_two_phase_commit_enable=False) as plain:
        done = run(plain, "produce", topic, "--transactional-id", "x", "--prepare-only", lines="a\n")
        assert (done.returncode, done.stdout) == (1, "")
        assert "TWO_PHASE_COMMIT" in done.stderr
        assert "transaction.two.phase.commit.enable" in done.stderr


def test_an_interruption_and_a_bad_line_abort_the_whole(
    broker: EmbeddedBroker, inside: Inside, topic: str
) -> None:
    """[CLI-65]"""
    one = ("produce", topic, "--transactional-id", topic)
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            words(broker, *one), stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            eventually(
                lambda: (
                    [each.partitions for each in admin.describe_transactions([topic]).found.values()]
                    == [{TopicPartition(topic, 0)}]
                )
            )
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130
        assert b"interrupted: the transaction was aborted" in said
    bad = inside(*one, "--key-separator", ":", lines="a:1\nb\nc:3\n")
    assert bad.returncode == 1
    assert "line 2: no key separator ':'" in bad.stderr
    assert committed(broker, topic) == []
    assert inside(*one, lines="a\nb\n").returncode == 0
    assert committed(broker, topic) == ["a", "b"]


@pytest.mark.gate(0)
def test_a_state_that_cannot_be_told_is_aborted(broker: EmbeddedBroker, topic: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words(broker, "produce", topic, "--transactional-id", topic, "--prepare-only"),
            input="a\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert "the state could not be printed" in done.stderr
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        assert admin.describe_transactions([topic]).one(topic).state == "CompleteAbort"


def test_a_topic_is_copied_through_json(inside: Inside, topic: str) -> None:
    lines = '{"key":"k","value":{"base64":"/w=="},"headers":[["h",null]],"timestamp":5,"partition":0}\n'
    assert inside("produce", topic, "--format", "json", lines=lines).returncode == 0
    (copied,) = shown(inside, topic, 1)
    assert inside("produce", topic, "--format", "json", lines=json.dumps(copied)).returncode == 0
    first, second = shown(inside, topic, 2)
    assert {**second, "offset": 0} == first == copied
    assert first["value"] == {"base64": "/w=="}


@pytest.mark.gate(0)
def test_a_group_goes_on_where_what_was_written_out_ends(
    broker: EmbeddedBroker, inside: Inside, topic: str
) -> None:
    """[CLI-66]"""
    assert inside("produce", topic, lines="a\nb\nc\n").returncode == 0
    grouped = ("consume", topic, "--group", topic, "--from-beginning")
    first = inside(*grouped, "--max-messages", "1")
    assert (first.returncode, first.stdout) == (0, "a\n")
    rest = inside(*grouped, "--max-messages", "5", "--timeout-ms", "4000")
    assert (rest.returncode, rest.stdout) == (4, "b\nc\n")
    assert "2 of 5 records" in rest.stderr
    assert inside("produce", topic, lines="d\n").returncode == 0
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(
            words(broker, *grouped, "--max-messages", "1"),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    assert lost.returncode == 1
    assert "Traceback" not in lost.stderr
    assert inside(*grouped, "--max-messages", "1").stdout == "d\n"


def test_force_aborts_what_is_open_under_the_id(broker: EmbeddedBroker, inside: Inside, topic: str) -> None:
    one = ("produce", topic, "--transactional-id", topic)
    assert inside(*one, "--prepare-only", lines="a\n").returncode == 0
    assert inside(*one, lines="b\n").returncode == 5
    done = inside(*one, "--force", lines="c\n")
    assert done.returncode == 0, done.stderr
    assert committed(broker, topic) == ["c"]


def batches(broker: EmbeddedBroker, topic: str) -> list[tuple[int, int]]:
    """Codec and number of records of each batch in the log of partition 0: KIP-98 "Message Format"."""
    (segment,) = Path(broker.data_dir, f"{topic}-0").glob("*.log")
    data, at, found = segment.read_bytes(), 0, []
    while at < len(data):
        found.append((int.from_bytes(data[at + 21 : at + 23]) & 7, int.from_bytes(data[at + 57 : at + 61])))
        at += 12 + int.from_bytes(data[at + 8 : at + 12])
    return found


def test_sync_waits_for_each_record(broker: EmbeddedBroker, inside: Inside, topic: str) -> None:
    later = ("--config", "linger.ms=50")
    assert inside("produce", topic, *later, lines="a\nb\nc\n").returncode == 0
    assert inside("produce", topic, *later, "--sync", lines="a\nb\nc\n").returncode == 0
    assert batches(broker, topic) == [(0, 3), (0, 1), (0, 1), (0, 1)]


@pytest.mark.parametrize(
    ("name", "codec"), [("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_batches_are_packed_as_asked(
    broker: EmbeddedBroker, inside: Inside, topic: str, name: str, codec: int
) -> None:
    lines = "a" * 1000 + "\n"
    assert inside("produce", topic, "--compression-codec", name, lines=lines).returncode == 0
    assert batches(broker, topic) == [(codec, 1)]
    assert committed(broker, topic) == ["a" * 1000]


def test_headers_of_the_command_stand_before_those_of_a_line(inside: Inside, topic: str) -> None:
    lines = '{"value":"a","headers":[["h","own"]]}\n'
    given = ("--header", "h=x", "--header", "h= =y ", "--format", "json")
    assert inside("produce", topic, *given, lines=lines).returncode == 0
    (record,) = shown(inside, topic, 1)
    assert record["headers"] == [["h", "x"], ["h", " =y "], ["h", "own"]]
    wrong = inside("produce", topic, "--header", "h", lines="a\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--header h: is not NAME=VALUE" in wrong.stderr


@pytest.mark.gate(0)
def test_partitions_topics_and_a_group_where_reading_begins(
    broker: EmbeddedBroker, inside: Inside, topic: str
) -> None:
    other = f"{topic}-other"
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name=other, partitions=2)]).all()
    for value, to, partition in (("a", topic, "0"), ("b", other, "0"), ("c", other, "1")):
        assert inside("produce", to, "--partition", partition, lines=f"{value}\n").returncode == 0
    one = ("--max-messages", "1")
    assert inside("consume", other, "--partition", "1", "--from-beginning", *one).stdout == "c\n"
    assert inside("consume", other, "--partition", "1", "--offset", "0", *one).stdout == "c\n"
    both = inside("consume", topic, "--topic", other, "--from-beginning", "--max-messages", "3")
    assert sorted(both.stdout.split()) == ["a", "b", "c"]
    asked = inside("consume", other, "--offset", "1", "--timestamp", "0")
    assert asked.returncode == 2
    assert "give one of --offset, --timestamp and --from-beginning" in asked.stderr
    new = inside("consume", topic, "--group", topic, "--timeout-ms", "3000")
    assert (new.returncode, new.stdout) == (0, ""), "a group without offsets begins at the end"
    assert inside("consume", topic, "--group", topic, "--from-beginning", *one).stdout == "a\n"


@pytest.mark.gate(0)
def test_where_reading_begins(inside: Inside, topic: str) -> None:
    lines = "".join(json.dumps({"value": str(n), "timestamp": n * 1000}) + "\n" for n in range(4))
    assert inside("produce", topic, "--format", "json", lines=lines).returncode == 0

    def values(count: int, *given: str) -> list[str]:
        return inside("consume", topic, "--max-messages", str(count), *given).stdout.split()

    def nothing(*given: str) -> bool:
        return inside("consume", topic, "--timeout-ms", "500", *given).stdout == ""

    assert values(2, "--offset", "2") == ["2", "3"]
    assert values(1, "--offset", "earliest", "--partition", "0") == ["0"]
    assert nothing("--offset", "latest")
    assert values(2, "--timestamp", "1970-01-01T00:00:01.5") == ["2", "3"]
    assert values(1, "--timestamp", "3000") == ["3"]
    assert nothing("--timestamp", "1970-01-02T00:00:00+01:00")
    assert nothing()
    assert inside("consume", topic, "--offset", "2", "--timeout-ms", "2000").stdout.split() == ["2", "3"]


@pytest.mark.gate(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_reading_ends_cleanly(
    broker: EmbeddedBroker, inside: Inside, topic: str, number: signal.Signals
) -> None:
    assert inside("produce", topic, lines="a\n").returncode == 0
    process = subprocess.Popen(
        words(broker, "consume", topic, "--from-beginning"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"a\n"
    process.send_signal(number)
    _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (0, b"")


@pytest.mark.gate(0)
def test_a_reader_that_goes_away_ends_it(broker: EmbeddedBroker, inside: Inside, topic: str) -> None:
    out, into = os.pipe()
    os.close(out)
    process = subprocess.Popen(
        words(broker, "consume", topic, "--from-beginning"), stdout=into, stderr=subprocess.PIPE
    )
    os.close(into)
    assert inside("produce", topic, lines="a\n").returncode == 0
    _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (0, b"")


@pytest.mark.gate(0)
def test_what_is_wrong_is_one_line(inside: Inside, topic: str) -> None:
    for code, given in (
        (2, ("produce",)),
        (2, ("produce", topic, "--topic", topic)),
        (2, ("produce", topic, "--prepare-only")),
        (2, ("produce", topic, "--key-separator", "")),
        (2, ("produce", topic, "--format", "json", "--key-separator", ":")),
        (2, ("produce", topic, "--config", "linger=5")),
        (1, ("produce", "nowhere", "--timeout-ms", "500")),
        (1, ("produce", topic, "--partition", "7", "--timeout-ms", "500")),
        (2, ("consume",)),
        (2, ("consume", topic, "--group", "g", "--offset", "1")),
        (2, ("consume", topic, "--offset", "1", "--from-beginning")),
        (2, ("consume", topic, "--offset", "soon")),
        (2, ("consume", topic, "--timestamp", "soon")),
        (1, ("consume", "nowhere")),
        (1, ("consume", topic, "--partition", "7")),
        (2, ("transactions", "complete", "t", "1:x")),
        (1, ("transactions", "complete", "nobody", "1:1", "--yes")),
    ):
        done = inside(*given, lines="a\n")
        assert (done.returncode, done.stdout) == (code, ""), (given, done.stderr)
        assert done.stderr


def test_what_answers_and_is_no_broker_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """Every command ends with one line and exit code 1, and does not try such an address again."""

    class Web(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(100)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Web) as server:
        Thread(target=server.serve_forever, args=(0.05,)).start()
        at = ("--bootstrap-server", f"127.0.0.1:{server.server_address[1]}")
        for words in (
            ("acls", "list"),
            ("features", "describe"),
            ("groups", "reset-offsets", "--group", "g", "--all-topics", "--to-latest"),
            ("topics", "delete-records", "--topic", "t", "--offset", "1", "--yes"),
            ("transactions", "complete", "t", "1:1"),
            ("consume", "t"),
        ):
            assert main([*words, *at]) == 1, words
            said = capfd.readouterr().err
            assert "not within" not in said
            assert "that is an HTTP server" in said
            assert len(said.splitlines()) == 1
        server.shutdown()
