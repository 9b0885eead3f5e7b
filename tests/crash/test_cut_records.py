"""What recovery has cut off a log is found, read and produced again: docs/how-to/backup-and-restore.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tools.servers.broker_process import BrokerProcess, make_tallystick_process

pytestmark = [pytest.mark.slow, pytest.mark.server]

TOPIC = "orders"
PROGRAM = str(Path(sys.executable).with_name("tallystick"))


def fill(broker: BrokerProcess) -> None:
    """Three records; a committed and an aborted transaction; a record of bytes; an open transaction."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    plain = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    transactional = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "orders-1"})
    transactional.init_transactions(30)

    def send(producer: Producer, value: bytes) -> None:
        producer.produce(TOPIC, value, key="k", headers=[("h", b"\xff")])
        assert producer.flush(30) == 0

    for value in (b"first", b"damaged", b"behind"):
        send(plain, value)
    for value, commit in ((b"committed", True), (b"aborted", False)):
        transactional.begin_transaction()
        send(transactional, value)
        (transactional.commit_transaction if commit else transactional.abort_transaction)(30)
    send(plain, b"\xff\x00")
    transactional.begin_transaction()
    send(transactional, b"open")
    broker.kill()


@pytest.mark.gate(0)
def test_what_was_cut_off_is_read_and_produced_again(tmp_path: Path) -> None:
    broker = make_tallystick_process(tmp_path, {"flush.policy": "os"})
    with broker:
        fill(broker)
        folder = tmp_path / "data" / f"{TOPIC}-0"
        (log,) = folder.glob("*.log")
        content = bytearray(log.read_bytes())
        content[content.index(b"damaged")] ^= 1
        log.write_bytes(content)
        broker.start()
        files = [str(path) for path in folder.glob("*.cut-*")]
        assert files
        said = subprocess.run(
            [sys.executable, "-m", "tallystick.storage.cut_records", *files], capture_output=True, check=True
        )
        values = [json.loads(line)["value"] for line in said.stdout.splitlines()]
        assert values == ["behind", "committed", {"base64": "/wA="}]
        report = said.stderr.decode()
        assert "no whole batch from byte 0" in report
        assert "aborted" in report
        assert "no marker in these files" in report
        at = ("--bootstrap-server", broker.bootstrap)
        subprocess.run(
            [PROGRAM, "produce", *at, TOPIC, "--format", "json"], input=said.stdout, check=True, timeout=60
        )
        read = subprocess.run(
            [PROGRAM, "consume", *at, TOPIC, "--from-beginning", "--max-messages", "4", "--output", "json"],
            capture_output=True,
            check=True,
            timeout=60,
        )
        lines = [json.loads(line) for line in read.stdout.splitlines()]
        assert [line["value"] for line in lines] == ["first", *values]
        assert all(line["key"] == "k" and line["headers"] == [["h", {"base64": "/w=="}]] for line in lines)
