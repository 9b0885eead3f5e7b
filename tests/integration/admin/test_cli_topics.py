"""`tallystick topics`, `configs` and `groups`."""

import json
from collections.abc import Callable

import pytest

from tallystick.admin.client import Admin
from tallystick.cli.main import main
from tallystick.client.blocking.producer import Producer
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.server, pytest.mark.broker(in_process=False)]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*words, "--bootstrap-server", broker.bootstrap_servers])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return ran


def test_the_life_of_a_topic(run: Run) -> None:
    code, out, _ = run("topics", "create", "a", "--partitions", "2", "--config", "retention.ms=9000")
    assert code == 0
    assert out.splitlines()[1].split() == ["a", "2", "1"]
    code, out, err = run("topics", "create", "--topic", "a")
    assert (code, out) == (1, "")
    assert "TOPIC_ALREADY_EXISTS" in err
    assert run("topics", "create", "d", "--config", "nonsense")[0] == 2
    assert run("topics", "alter", "a", "--partitions", "3")[0] == 0
    described = json.loads(run("topics", "describe", "a", "--output", "json")[1])
    assert [(row["Partition"], row["Leader"], row["Isr"]) for row in described] == [
        (index, 1, [1]) for index in range(3)
    ]
    assert run("topics", "create", "b", "--topic", "b2")[0] == 0
    everything = json.loads(run("topics", "describe", "--output", "json")[1])
    assert {"a", "b", "b2"} <= {row["Topic"] for row in everything}
    assert "a" in [row["Topic"] for row in json.loads(run("topics", "list", "--output", "json")[1])]
    assert run("topics", "delete", "--topic", "a")[0] == 5
    assert run("topics", "delete", "a", "--yes")[0] == 0
    assert run("topics", "describe", "--topic", "a")[:2] == (1, "")
    assert run("topics", "describe", "--topic", "a", "--output", "json")[:2] == (1, "[]\n")


def test_settings_are_set_shown_and_taken_back(run: Run) -> None:
    assert run("topics", "create", "--topic", "c")[0] == 0
    at = ("--entity-type", "topics", "--entity-name", "c")
    assert run("configs", "alter", *at, "--add-config", "retention.ms=7000")[0] == 0
    code, out, _ = run("configs", "describe", "topic", "c")
    assert code == 0
    assert ["retention.ms", "7000", "topic", "no", "no"] in [line.split() for line in out.splitlines()]
    assert run("configs", "alter", *at, "--delete-config", "retention.ms")[0] == 0
    assert "7000" not in run("configs", "describe", *at, "--all")[1]
    assert run("configs", "alter", *at)[0] == 2
    assert run("configs", "describe", "--entity-type", "users", "--entity-name", "u")[0] == 2
    code, _, err = run("configs", "alter", *at, "--add-config", "retention.ms=soon")
    assert code == 1
    assert "INVALID_CONFIG" in err


def test_a_group_and_how_far_it_is_behind(broker: EmbeddedBroker, run: Run) -> None:
    at = TopicPartition("read", 0)
    assert run("topics", "create", "--topic", "read")[0] == 0
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.alter_group_offsets("readers", {at: OffsetAndMetadata(0)}).all()
    listed = json.loads(run("groups", "list", "--output", "json")[1])
    assert ("readers", "Empty") in [(row["Group"], row["State"]) for row in listed]
    (row,) = json.loads(run("groups", "describe", "--group", "readers", "--output", "json")[1])
    assert (row["Topic"], row["CurrentOffset"], row["LogEndOffset"], row["Lag"]) == ("read", 0, 0, 0)
    assert row in json.loads(run("groups", "describe", "--output", "json")[1])
    assert run("groups", "delete", "readers")[0] == 5
    assert run("groups", "delete", "--group", "readers", "--yes")[0] == 0
    code, _, err = run("groups", "describe", "readers")
    assert code == 1
    assert err.count("readers") == 1
    assert "GROUP_ID_NOT_FOUND" in err


def test_offsets_of_a_group_are_moved_only_with_execute(broker: EmbeddedBroker, run: Run) -> None:
    assert run("topics", "create", "--topic", "moved", "--partitions", "2")[0] == 0
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for second in range(4):
            producer.send("moved", b"x", partition=0, timestamp_ms=second * 1000)

    def planned(*words: str, code: int = 0) -> list[list[int | None]]:
        done, out, err = run("groups", "reset-offsets", "g", *words, "--output", "json")
        assert done == code, err
        return [[row["CurrentOffset"], row["NewOffset"]] for row in json.loads(out)] if out else []

    moved = ("--topic", "moved")
    assert planned(*moved, "--to-latest") == [[None, 4], [None, 0]]
    assert planned("--all-topics", "--to-latest") == []
    assert planned(*moved, "--shift-by", "1", code=1) == []
    assert planned("--topic", "moved:0", "--to-offset", "3", "--execute") == [[None, 3]]
    assert planned("--all-topics", "--shift-by", "-2") == [[3, 1]]
    assert planned("--all-topics", "--shift-by", "9") == [[3, 4]]
    assert planned("--topic", "moved:0", "--to-datetime", "1970-01-01T00:00:01Z") == [[3, 1]]
    assert planned("--topic", "moved:0", "--to-earliest", "--dry-run") == [[3, 0]]
    assert planned(*moved, code=2) == []
    assert planned(*moved, "--to-latest", "--to-earliest", code=2) == []
    assert planned("--to-latest", code=2) == []
    assert planned("--topic", "moved:x", "--to-latest", code=2) == []
    assert planned("--topic", "moved:7", "--to-latest", code=1) == []
    with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        noted = OffsetAndMetadata(3, metadata="a note")
        admin.alter_group_offsets("g", {TopicPartition("moved", 0): noted}).all()
        assert planned("--all-topics", "--to-offset", "3", "--execute") == [[3, 3]]
        assert admin.list_group_offsets("g")[TopicPartition("moved", 0)].metadata == "a note"
        assert planned("--all-topics", "--to-earliest", "--execute") == [[3, 0]]
        assert admin.list_group_offsets("g")[TopicPartition("moved", 0)].metadata == ""
    forget = ("groups", "delete-offsets", "--group", "g", "--topic", "moved:0")
    assert run(*forget)[0] == 5
    assert run(*forget, "--yes")[0] == 0
    assert planned("--all-topics", "--to-latest") == []


def test_records_are_deleted_after_a_yes(broker: EmbeddedBroker, run: Run) -> None:
    assert run("topics", "create", "--topic", "cut")[0] == 0
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for _ in range(4):
            producer.send("cut", b"x")
    cut = ("topics", "delete-records", "cut:0", "--before-offset")
    assert run(*cut, "2")[0] == 5
    assert json.loads(run(*cut, "2", "--yes", "--output", "json")[1]) == [
        {"Topic": "cut", "Partition": 0, "FirstOffset": 2}
    ]
    code, _, err = run(*cut, "9", "--yes")
    assert code == 1
    assert "OFFSET_OUT_OF_RANGE" in err
    assert json.loads(run(*cut, "-1", "--yes", "--output", "json")[1])[0]["FirstOffset"] == 4


def test_feature_levels_go_up_and_down(run: Run) -> None:
    level = ("--feature", "transaction.version=1")
    assert json.loads(run("features", "describe", "--output", "json")[1]) == [
        {"Feature": "transaction.version", "Level": 2}
    ]
    code, _, err = run("features", "upgrade", *level)
    assert code == 1
    assert "UpdateFeatures" in err
    assert run("features", "downgrade", *level, "--dry-run")[0] == 0
    assert "2" in run("features", "describe")[1]
    assert run("features", "downgrade", *level)[0] == 0
    assert run("features", "describe")[1].splitlines()[1].split() == ["transaction.version", "1"]
    assert run("features", "upgrade", "transaction.version=2")[0] == 0
    assert run("features", "upgrade", "--feature", "transaction.version=two")[0] == 2
    assert run("features", "downgrade", "--feature", "nothing=0", "--unsafe")[0] == 1


def test_a_cluster_without_rights_says_so(run: Run) -> None:
    code, out, err = run("acls", "list")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "DescribeAcls" in err
    assert run("acls", "create", "--operation", "Fly", "--allow-principal", "User:a", "--topic", "t")[0] == 2
    assert run("acls", "create", "--operation", "Read", "--topic", "t")[0] == 2
    assert run("acls", "delete", "--yes")[0] == 2
