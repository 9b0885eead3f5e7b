"""An operator's resolve in every store that is shipped: by its URL, after its host is gone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict
from tests.support import dual_write_stores as stores
from tests.support.dual_world import Crash, Crashed, new_name
from tests.support.dual_write_stores import Place
from tests.support.raw_producer import committed_values, make_topic

from tallystick.cli.main import main
from tallystick.dualwrite import DualWriter, RocksStore
from tallystick.testing import EmbeddedBroker, eventually

pytestmark = pytest.mark.server


@pytest.fixture(params=["rocksdb", "zookeeper", "django", "delta"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "rocksdb":
        made = Place("rocksdb", str(tmp_path / "rocks"))
    elif request.param == "delta":
        made = Place("delta", str(tmp_path / "table"))
    elif request.param == "zookeeper":
        server = request.getfixturevalue("zookeeper")
        made = Place("zookeeper", f"{server.hosts}{server.new_root()}")
    else:
        server = request.getfixturevalue("postgresql")
        made = Place("django", server.url(server.new_database()))
    stores.create(made)
    yield made
    stores.leave(made)


def url_of(place: Place) -> str:
    if place.kind == "django":
        return place.url.render_as_string(hide_password=False)
    return f"delta:{place.where}" if place.kind == "delta" else f"{place.kind}://{place.where}"


def resolve(
    broker: EmbeddedBroker, url: str, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[dict[str, str]]]:
    capsys.readouterr()
    at = ("--store", url, "--bootstrap-server", broker.bootstrap_servers, "--output", "json")
    code = main(["transactions", "resolve", *words, *at])
    return code, json.loads(capsys.readouterr().out)


def die_after(step: str, store: Any, kind: str, config: dict[str, object]) -> None:
    """Pay 1, and be gone after a step."""
    watch = Crash(at=step)
    with closing(DualWriter(store, config, watch=watch)) as writer:
        with suppress(Crashed):
            writer.recover()
            with writer.transaction() as txn:
                stores.write(kind, txn.database.handle, 1)
                txn.send(str(config["transactional.id"]), b"1")
        watch.over = True
        for branch in writer._session._branches_by_id:  # a process that is gone has aborted nothing
            producer = branch.detach_producer()
            if producer is not None:
                producer.close(abort=False)


@pytest.mark.gate(1)
@pytest.mark.parametrize(
    ("step", "verdict", "has"), [("prepare", "ABORT", []), ("commit database", "COMMIT", [1])]
)
def test_both_halves_and_the_verdict_then_finished_then_nothing_is_left(
    broker: EmbeddedBroker,
    place: Place,
    capsys: pytest.CaptureFixture[str],
    step: str,
    verdict: str,
    has: list[int],
) -> None:
    """[DW-6] A row of Django's is read and finished through SQLAlchemy."""
    topic, url = new_name(), url_of(place)
    make_topic(broker, topic)
    with stores.opened(place) as store:
        config: dict[str, object] = {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic,
        }
        die_after(step, store, place.kind, config)
        row = store.read_state(topic)
    code, (shown,) = resolve(broker, url, capsys, "--dry-run")
    assert (code, shown["TransactionalId"], shown["Verdict"]) == (3, topic, verdict)
    assert (shown["Database"], bool(shown["InDoubt"])) == (str(row.state), True)
    with stores.opened(place) as store:
        assert store.read_state(topic) == row
    code, (shown,) = resolve(broker, url, capsys, "--yes")
    assert (code, shown["Verdict"]) == (0, verdict)
    assert stores.rows(place) == has
    eventually(lambda: committed_values(broker, topic, 0) == [str(each) for each in has])
    code, (shown,) = resolve(broker, url, capsys, "--dry-run")
    assert (code, shown["Verdict"]) == (0, "NOTHING")
    with stores.opened(place) as store:
        assert store.read_state(topic).owner != row.owner


def test_a_rocksdb_that_a_process_has_open_is_left_to_it(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """RocksDB's process lock is the fence: nothing may be finished around who holds it."""
    folder = tmp_path / "rocks db"
    with closing(Rdict(str(folder))) as database, closing(RocksStore(database)) as store:
        store.create()
    hold = "import sys, rocksdict; held = rocksdict.Rdict(sys.argv[1]); print(flush=True); sys.stdin.read()"
    url = f"rocksdb://{str(folder).replace(' ', '%20')}"
    at = ["--store", url, "--bootstrap-server", broker.bootstrap_servers]
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert main(["transactions", "resolve", "--dry-run", *at]) == 1
        said = capsys.readouterr().err
        assert f"{folder} is open in a live process" in said
        assert said.count("\n") == 1
        holder.communicate()
    assert main(["transactions", "resolve", "--dry-run", *at]) == 0


@pytest.mark.parametrize(
    ("url", "code", "why"),
    [
        ("rocksdb://host/path", 2, "rocksdb:///"),
        ("rocksdb:", 2, "rocksdb:///"),
        ("rocksdb:///{folder}/none", 1, "is not a RocksDB database"),
        ("rocksdb:///{folder}", 1, "is not a RocksDB database"),
        ("zookeeper:///root", 2, "zookeeper://HOST:PORT"),
        ("zookeeper://localhost:1?timeout=5", 2, "zookeeper://HOST:PORT"),
        ("zookeeper://me:secret@localhost:x/root", 2, "Port could not be"),
        ("delta:{folder}/none", 1, "does not exist"),
        ("delta:", 2, "is not the URL of a lake table"),
        ("delta:hdfs://name/table", 2, "object store"),
    ],
)
def test_a_url_that_names_no_store_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, code: int, why: str
) -> None:
    """And nothing is made where there was nothing."""
    words = ["--store", url.format(folder=tmp_path), "--bootstrap-server", "localhost:1", "--dry-run"]
    assert main(["transactions", "resolve", *words]) == code
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert "secret" not in said
    assert not list(tmp_path.iterdir())


def test_only_an_sql_database_has_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--store", "rocksdb:///nowhere", "--schema", "s", "--bootstrap-server", "localhost:1"]
    assert main(["transactions", "resolve", *words]) == 2
    assert "--schema" in capsys.readouterr().err


def test_a_zookeeper_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tallystick.dualwrite.stores.by_url.CONNECT_TIMEOUT_S", 0.2)
    words = ["--store", "zookeeper://me:secret@127.0.0.1:1/root", "--bootstrap-server", "localhost:1"]
    assert main(["transactions", "resolve", *words]) == 1
    said = capsys.readouterr().err
    assert "none of the ZooKeeper servers 127.0.0.1:1 answers" in said
    assert said.count("\n") == 1
    assert "secret" not in said
