"""`tallystick topics`, `configs` and `groups`."""

import json
from collections.abc import Callable, Iterator

import pytest

from tallystick.admin.client import Admin
from tallystick.cli.main import main
from tallystick.client.offsets import OffsetAndMetadata
from tallystick.kernel.ids import TopicPartition
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


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
    code, out, _ = run(
        "topics", "create", "--topic", "a", "--partitions", "2", "--config", "retention.ms=9000"
    )
    assert code == 0
    assert out.splitlines()[1].split() == ["a", "2", "1"]
    code, _, err = run("topics", "create", "--topic", "a")
    assert code == 1
    assert "TOPIC_ALREADY_EXISTS" in err
    assert run("topics", "create", "--topic", "b", "--config", "nonsense")[0] == 2
    assert run("topics", "alter", "--topic", "a", "--partitions", "3")[0] == 0
    described = json.loads(run("topics", "describe", "--topic", "a", "--output", "json")[1])
    assert [(row["Partition"], row["Leader"], row["Isr"]) for row in described] == [
        (index, 1, [1]) for index in range(3)
    ]
    assert "a" in [row["Topic"] for row in json.loads(run("topics", "list", "--output", "json")[1])]
    assert run("topics", "delete", "--topic", "a")[0] == 5
    assert run("topics", "delete", "--topic", "a", "--yes")[0] == 0
    assert run("topics", "describe", "--topic", "a")[0] == 1


def test_settings_are_set_shown_and_taken_back(run: Run) -> None:
    assert run("topics", "create", "--topic", "c")[0] == 0
    at = ("--entity-type", "topics", "--entity-name", "c")
    assert run("configs", "alter", *at, "--add-config", "retention.ms=7000")[0] == 0
    code, out, _ = run("configs", "describe", *at)
    assert code == 0
    assert ["retention.ms", "7000", "topic", "False", "False"] in [line.split() for line in out.splitlines()]
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
    (listed,) = json.loads(run("groups", "list", "--output", "json")[1])
    assert (listed["Group"], listed["State"]) == ("readers", "Empty")
    (row,) = json.loads(run("groups", "describe", "--group", "readers", "--output", "json")[1])
    assert (row["Topic"], row["CurrentOffset"], row["LogEndOffset"], row["Lag"]) == ("read", 0, 0, 0)
    assert run("groups", "delete", "--group", "readers")[0] == 5
    assert run("groups", "delete", "--group", "readers", "--yes")[0] == 0
    code, _, err = run("groups", "describe", "--group", "readers")
    assert code == 1
    assert "GROUP_ID_NOT_FOUND" in err
