"""What only the store in ZooKeeper does, on a real server: versions, names of nodes, lost answers."""

import contextlib
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError
from tests.support.cutting_proxy import CuttingProxy
from tests.support.servers import ZooKeeper

from tallystick import PreparedTxnState
from tallystick.dualwrite.errors import BadStore, CommitUnknown, CorruptRow, ManagedByWriter, NotCommitted
from tallystick.dualwrite.stores.zookeeper import ZooKeeperStore
from tallystick.kernel.value import replace

pytestmark = [pytest.mark.server, pytest.mark.slow]

STATE = PreparedTxnState("7:0")

# A multi is operation 14 of ZooKeeper's protocol; a request is its length, its number, its operation.
MULTI = (14).to_bytes(4, "big")


@contextlib.contextmanager
def connected(hosts: str, timeout_s: float = 5.0) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=timeout_s)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def client(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    with connected(zookeeper.hosts) as connection:
        yield connection


@pytest.fixture
def store(zookeeper: ZooKeeper, client: KazooClient) -> ZooKeeperStore:
    made = ZooKeeperStore(client, zookeeper.new_root())
    made.create()
    return made


@pytest.mark.parametrize("odd", ["a/b", "/", ".", "..", "...", "a.b", "%2F", "ключ", "a b\n", "x" * 500])
def test_any_id_is_one_node(store: ZooKeeperStore, odd: str) -> None:
    row = store.claim(odd)
    assert store.read_state(odd) == row
    assert store.transactional_ids() == [odd]
    assert len(store.client.get_children(store.path)) == 1


def test_a_refused_operation_of_the_user_is_the_users_error(store: ZooKeeperStore) -> None:
    row = store.claim("id")
    store.client.create(f"{store.path}-there")
    transaction = store.begin()
    transaction.record(replace(row, state=PreparedTxnState("7:0")))
    transaction.request.create(f"{store.path}-there")
    with pytest.raises(NotCommitted) as refused:
        transaction.commit()
    assert isinstance(refused.value.cause, NodeExistsError)
    assert store.read_state("id") == row


def test_a_lost_answer_is_unknown_and_a_claim_learns_it(zookeeper: ZooKeeper, store: ZooKeeperStore) -> None:
    """[DW-3] The server has done it, and the client never hears of it."""
    row = store.claim("id")
    with CuttingProxy(zookeeper.port) as proxy, connected(f"127.0.0.1:{proxy.port}") as behind:
        behind_proxy = ZooKeeperStore(behind, store.path)
        transaction = behind_proxy.begin()
        transaction.record(replace(row, state=PreparedTxnState("7:0")))
        proxy.lose_answer(lambda data: data[8:12] == MULTI)
        with pytest.raises(CommitUnknown):
            transaction.commit()
        assert proxy.cuts == 1
    assert store.claim("id").state == PreparedTxnState("7:0")


def test_a_commit_with_no_session_left_is_unknown(zookeeper: ZooKeeper, store: ZooKeeperStore) -> None:
    """[DW-3] Cut for longer than the session lives: nobody can tell what became of the multi."""
    row = store.claim("id")
    with CuttingProxy(zookeeper.port) as proxy, connected(f"127.0.0.1:{proxy.port}", 0.4) as behind:
        behind_proxy = ZooKeeperStore(behind, store.path, commit_timeout_s=2.0)
        transaction = behind_proxy.begin()
        transaction.record(replace(row, state=PreparedTxnState("7:0")))
        proxy.cut()
        with pytest.raises(CommitUnknown):
            transaction.commit()
    assert store.claim("id").state == PreparedTxnState()


def test_the_nodes_survive_a_kill_of_the_server(zookeeper: ZooKeeper, store: ZooKeeperStore) -> None:
    row = store.claim("id")
    transaction = store.begin()
    transaction.record(replace(row, state=PreparedTxnState("7:0")))
    transaction.commit()
    zookeeper.kill()
    zookeeper.start()
    with connected(zookeeper.hosts) as again:
        found = ZooKeeperStore(again, store.path).read_state("id")
    assert found == replace(row, state=PreparedTxnState("7:0"))


def test_without_the_path_and_with_a_foreign_node(store: ZooKeeperStore) -> None:
    missing = ZooKeeperStore(store.client, f"{store.path}/not-there")
    with pytest.raises(BadStore):
        missing.claim("id")
    with pytest.raises(BadStore):
        missing.transactional_ids()
    store.client.create(store.path_of("id"), b"not ours")
    with pytest.raises(CorruptRow):
        store.claim("id")


def test_the_request_is_committed_by_the_store_alone(store: ZooKeeperStore) -> None:
    row = store.claim("id")
    transaction = store.begin()
    transaction.request.commit()
    with pytest.raises(ManagedByWriter):
        transaction.record(row)
    transaction.rollback()
    with pytest.raises(NotCommitted) as refused:
        transaction.commit()
    assert isinstance(refused.value.cause, ManagedByWriter)


@pytest.mark.parametrize("sizes", [[1_100_000], [30_000] * 40, [1_048_500]])
def test_a_request_above_the_servers_limit_is_refused_before_it_is_sent(
    store: ZooKeeperStore, sizes: list[int]
) -> None:
    """Sent, it would end the session that the application shares, and its outcome would be unknown."""
    row = store.claim("id")
    transaction = store.begin()
    for number, size in enumerate(sizes):
        transaction.request.create(f"{store.path}-{number}", b"x" * size)
    with pytest.raises(ValueError, match=r"jute\.maxbuffer"):
        transaction.record(replace(row, state=STATE))
    transaction.rollback()
    assert store.read_state("id") == row


def test_a_request_just_within_the_limit_is_committed(store: ZooKeeperStore) -> None:
    row = store.claim("id")
    size_bytes = store.request_bytes_max
    while True:
        transaction = store.begin()
        transaction.request.create(f"{store.path}-{size_bytes}", b"x" * size_bytes)
        try:
            transaction.record(replace(row, state=STATE))
        except ValueError:
            size_bytes -= 100
            continue
        transaction.commit()
        break
    assert size_bytes > store.request_bytes_max - 1500
    assert store.read_state("id") == replace(row, state=STATE)
