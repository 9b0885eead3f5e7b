"""ACLs on a running broker: `tallystick acls`, and clients that are denied and allowed again."""

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from tallystick.admin import Admin
from tallystick.admin.txn.transaction_log import TransactionLogFollower
from tallystick.cli.main import main
from tallystick.client.blocking.producer import Producer
from tallystick.client.errors import NotAuthorized
from tallystick.testing import EmbeddedBroker

pytestmark = pytest.mark.server

# Without logins every client is User:ANONYMOUS; what no ACL names is open to it.
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config=SETTINGS) as running:
        yield running


@pytest.fixture
def run(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def ran(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*words, "--bootstrap-server", broker.bootstrap_servers])
        return code, capsys.readouterr().out

    return ran


def test_a_right_is_taken_and_given_back(broker: EmbeddedBroker, run: Run) -> None:
    assert run("topics", "create", "--topic", "orders")[0] == 0
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("orders", b"1").result(30)
        bob = ("--allow-principal", "User:bob", "--operation", "Write", "--topic", "ord")
        assert run("acls", "create", *bob, "--resource-pattern-type", "prefixed")[0] == 0
        with pytest.raises(NotAuthorized, match="Write on the topic 'orders' is needed") as caught:
            producer.send("orders", b"2").result(30)
    grant = caught.value.what().partition("tallystick ")[2]
    grant = grant.replace("User:NAME", "User:ANONYMOUS")
    assert run(*grant.split())[0] == 0
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        producer.send("orders", b"3").result(30)
    code, out = run("acls", "list", "--topic", "orders", "--output", "json")
    assert code == 0
    assert {(row["Principal"], row["PatternType"], row["Operation"]) for row in json.loads(out)} == {
        ("User:bob", "Prefixed", "Write"),
        ("User:ANONYMOUS", "Literal", "Write"),
    }
    code, out = run("acls", "delete", "--topic", "orders", "--resource-pattern-type", "match", "--yes")
    assert code == 0
    assert json.loads(run("acls", "list", "--output", "json")[1]) == []


def test_who_may_not_read_the_transaction_log_is_told_so_as_a_value(broker: EmbeddedBroker, run: Run) -> None:
    """And who may not describe the cluster sees a history without clients."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "client.id": "shop"}
    with Producer({**settings, "transactional.id": "told"}) as producer:
        producer.init_transactions()

    async def follow() -> tuple[int, list[str]]:
        async with TransactionLogFollower(settings) as follower:
            told = len(await follower.poll())
            await follower.poll()
            return told, [type(each).__name__ for each in follower.take_failures()]

    def read_history() -> list[tuple[str | None, bool]]:
        with Admin(settings) as admin:
            history = admin.describe_transactions(["told"], history=True).one("told").history
        return [(each.client_id, each.address is None) for each in history or ()]

    assert asyncio.run(follow()) == (1, [])
    assert read_history() == [("shop", False)]
    bob = ("--allow-principal", "User:bob")
    assert run("acls", "create", *bob, "--operation", "Read", "--topic", "__transaction_state")[0] == 0
    assert run("acls", "create", *bob, "--operation", "Describe", "--cluster")[0] == 0
    assert asyncio.run(follow()) == (0, ["NotAuthorized"])
    assert read_history() == [(None, True)]
