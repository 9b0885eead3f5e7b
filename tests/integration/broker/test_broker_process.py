"""The broker as a process: start, the one line, signals, a second instance, what a crash leaves."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from tallystick.broker.embedded import BrokerDidNotStart
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("broker_processes")]

HEAVY = {"numpy", "pyarrow", "sqlalchemy", "pyspark", "rich", "typer", "click"}


def broker_command(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", "broker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(*words: str) -> tuple[int, str]:
    process = broker_command(*words)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def write(servers: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    failed: list[object] = []
    for value in values:
        producer.produce("t", value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


def read(servers: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
    found: list[bytes] = []

    def all_read() -> bool:
        found.extend(m.value() or b"" for m in consumer.consume(1000, 0.1) if m.error() is None)
        return len(found) >= count

    eventually(all_read)
    consumer.close()
    return found


@pytest.mark.gate(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_one_line_says_what_was_started_and_a_signal_ends_it_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = broker_command("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0", "-o", "flush.policy=os")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(
        r"tallystick \S+: cluster \S{22}, listening on (127\.0\.0\.1:\d+), data in (\S+), "
        r"flush\.policy os \(not power-safe\)\n",
        line,
    )
    assert found, line
    assert found[2] == str(tmp_path)
    write(found[1], b"a", b"b")
    code, errors = refused("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "another process uses this data directory" in errors
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    with EmbeddedBroker(tmp_path) as broker:
        assert read(broker.bootstrap_servers, 2) == [b"a", b"b"]


def test_bad_settings_are_all_named_and_nothing_is_started(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partition=1\nlog.retention.ms=soon\n")
    code, errors = refused("--config", str(file), "--listen", "0.0.0.0:9092", "-o", "flush.policy=x")
    assert code == 2
    for part in ("num.partitions?", "log.retention.ms", "flush.policy"):
        assert part in errors
    assert "Traceback" not in errors
    code, errors = refused("--data-dir", str(tmp_path / "d"), "--listen", "0.0.0.0:9092")
    assert (code, "--advertise" in errors, (tmp_path / "d").exists()) == (2, True, False)


def test_a_taken_port_is_said_so(tmp_path: Path) -> None:
    with EmbeddedBroker(in_process=True) as broker:
        code, errors = refused("--data-dir", str(tmp_path), "--listen", broker.bootstrap_servers)
    assert code == 1
    assert "address already in use" in errors
    assert "Traceback" not in errors


@pytest.mark.gate(1)
@pytest.mark.parametrize("policy", ["ack", "interval", "os"])
def test_what_was_acknowledged_survives_a_killed_process(policy: str) -> None:
    with EmbeddedBroker(flush_policy=policy) as broker:
        expected: list[bytes] = []
        for round_ in range(3):
            values = [b"%d-%d" % (round_, i) for i in range(50)]
            write(broker.bootstrap_servers, *values)
            expected += values
            broker.kill()
            broker.start()
        assert read(broker.bootstrap_servers, len(expected)) == expected


def test_topics_settings_and_producer_ids_survive_too(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        write(broker.bootstrap_servers, b"a")
        first = broker.bootstrap_servers
        broker.kill()
        broker.start()
        assert broker.bootstrap_servers == first
        write(broker.bootstrap_servers, b"b")
        assert read(broker.bootstrap_servers, 2) == [b"a", b"b"]
    assert tmp_path.exists()


@pytest.mark.gate(0)
def test_metadata_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """An empty metadata file would hide every topic whose records are still there."""
    with EmbeddedBroker(tmp_path) as broker:
        write(broker.bootstrap_servers, b"a")
    for file in tmp_path.glob("metadata.sqlite*"):
        file.unlink()
    with pytest.raises(BrokerDidNotStart, match="is missing"):
        EmbeddedBroker(tmp_path).start()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os; from tallystick.testing import EmbeddedBroker;"
        f"b = EmbeddedBroker({str(tmp_path)!r}).start(); print(b.pid, flush=True); os._exit(0)"
    )
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, timeout=60)
    pid = int(printed.stdout)
    eventually(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid))
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_broker_process_loads_nothing_heavy_and_stays_small() -> None:
    with EmbeddedBroker() as broker:
        write(broker.bootstrap_servers, b"a")
        status = Path(f"/proc/{broker.pid}/status").read_text()
        maps = Path(f"/proc/{broker.pid}/maps").read_text()
    (rss_kib,) = map(int, re.findall(r"VmRSS:\s+(\d+) kB", status))
    assert rss_kib <= 64 * 1024
    assert not {name for name in HEAVY if f"/{name}/" in maps}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, errors = refused("--data-dir", str(tmp_path), "--listen", "127.0.0.1:0")
    assert code == 3
    assert "Traceback" not in errors


def test_files_are_not_readable_by_every_user_whatever_the_shells_umask(tmp_path: Path) -> None:
    """`UMask=0027` of the unit, without a unit: files 0640 or narrower, folders 0750."""
    former = os.umask(0)
    try:
        process = broker_command("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        assert process.stdout is not None
        found = re.search(r"listening on (\S+), ", process.stdout.readline())
    finally:
        os.umask(former)
    assert found
    write(found[1], b"a")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert "other users" not in errors
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "data").rglob("*")}
    assert len(modes) > 5
    assert {path.name: oct(mode) for path, mode in modes.items() if mode & 0o027} == {}


def test_a_data_directory_that_every_user_may_look_into_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    code, errors = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "-o", "node.id=x")
    assert (code, "log.dirs" in errors) == (2, False)
    (tmp_path / "data" / "metadata.sqlite").write_bytes(b"not a database" * 100)
    code, errors = refused("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert code == 3, errors  # another start would end the same way
    assert f"log.dirs {tmp_path / 'data'}: other users of this machine may look for records" in errors
    assert "mode 0755: chmod 750 it" in errors
