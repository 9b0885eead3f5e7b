"""The metadata store: what was answered is there after any end of the process."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.scram_users import create_credential

from tallystick.broker.authorizer.bindings import AccessControlEntry, AclBinding, ResourcePattern
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.metadata.store import MetadataStore, MetadataUnusable, ProducerIdBlock, Topic
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.broker.partitions.topic_controller import TopicController
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
from tallystick.security.sasl.scram import SCRAM_SHA_256
from tallystick.storage.log_dir import make_random_id

T = TypeVar("T")


def topic(name: str, **configs: str) -> Topic:
    return Topic(name, make_random_id(), 3, configs)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path / "m", "c" * 22)
    made = [topic("a", **{"retention.ms": "5"}), topic("b")]
    store.create_topics(made)
    store.set_partitions({"b": 7})
    store.set_topic_config("a", {"max.message.bytes": "9"})
    store.set_broker_config("", {"message.max.bytes": "8"})
    store.close()
    again = MetadataStore(tmp_path / "m", "another")
    assert again.load_cluster_id() == "c" * 22
    assert again.load_topics() == [
        Topic("a", made[0].topic_id, 3, {"max.message.bytes": "9"}),
        Topic("b", made[1].topic_id, 7, {}),
    ]
    assert again.load_broker_configs() == {"": {"message.max.bytes": "8"}}
    again.close()


def test_a_deletion_is_remembered_until_the_files_are_gone(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path / "m", "c")
    first = topic("a")
    store.create_topics([first])
    store.delete_topics([first])
    store.create_topics([topic("a")])
    assert [(t.name, t.topic_id, t.partitions) for t in store.load_deleted_topics()] == [
        ("a", first.topic_id, 3)
    ]
    store.forget_deleted([first.topic_id])
    assert store.load_deleted_topics() == []
    assert len(store.load_topics()) == 1
    store.close()


def test_several_topics_are_created_together_or_not_at_all(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path / "m", "c")
    store.create_topics([topic("a")])
    with pytest.raises(Exception, match="UNIQUE"):
        store.create_topics([topic("b"), topic("a")])
    assert [t.name for t in store.load_topics()] == ["a"]
    store.close()


def test_no_producer_id_is_given_twice_whatever_ends_the_process(tmp_path: Path) -> None:
    """[MET-2]"""
    given: list[int] = []
    for _ in range(3):
        store, ids = MetadataStore(tmp_path / "m", "c"), ProducerIdBlock()
        for _ in range(1500):
            taken = ids.claim_next()
            if taken is None:
                ids.refill(store.allocate_producer_ids())
                taken = ids.claim_next()
            assert taken is not None
            given.append(taken)
        store.close()  # what is left of the block is lost, as in a crash
    assert len(set(given)) == len(given) == 4500


def test_a_newer_format_is_not_touched(tmp_path: Path) -> None:
    store = MetadataStore(tmp_path / "m", "c")
    store._db.execute("PRAGMA user_version = 99")
    store.close()
    with pytest.raises(MetadataUnusable, match="format 99"):
        MetadataStore(tmp_path / "m", "c")


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"not a database, by any means" * 100)
    with pytest.raises(MetadataUnusable):
        MetadataStore(tmp_path / "m", "c")


def test_the_image_changes_only_after_the_store(tmp_path: Path) -> None:
    """[MET-1] A topic whose creation could not be made durable is not there."""

    class Failing(BlockingWorker):
        async def run(self, call: Callable[[], T]) -> T:
            raise OSError("the disk is gone")

    async def play() -> None:
        store = MetadataStore(tmp_path / "m", "c")
        worker = Failing()
        controller = TopicController(store, NoFiles(), worker, BrokerConfig.parse({}))
        with pytest.raises(OSError, match="the disk is gone"):
            await controller.create(TopicSpec("a", 1))
        assert controller.image.find("a") is None
        assert controller.image.list_names() == []
        worker.close()
        store.close()

    asyncio.run(play())


class NoFiles:
    """Nothing is to be opened in these tests."""

    def open_partition(self, *_: object) -> None:
        raise AssertionError

    def find_foreign_partitions(self, *_: object) -> tuple[()]:
        return ()

    def make_log_config(self, *_: object) -> None:
        raise AssertionError


def test_a_full_disk_fails_one_change_and_not_those_after_it(tmp_path: Path) -> None:
    asked: list[int] = []
    store = MetadataStore(tmp_path / "m", "c", lambda: asked.append(1))
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.set_broker_config("1", {"a": "x" * 100_000})
    store._db.execute("PRAGMA max_page_count = 1000000")
    store.set_broker_config("1", {"a": "y"})
    assert store.load_broker_configs() == {"1": {"a": "y"}}
    assert len(asked) >= 3  # room is asked for before each change
    store.close()


def test_a_file_of_format_1_is_upgraded_and_keeps_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/formats/metadata.md: one step for each earlier format, and "one line at the start" says so."""
    script = (Path(__file__).parents[2] / "vectors/metadata/format-1.sql").read_text()
    with closing(sqlite3.connect(tmp_path / "m")) as db:
        db.executescript(script)
    for _ in range(2):
        store = MetadataStore(tmp_path / "m", "another")
        assert store._db.execute("PRAGMA user_version").fetchone() == (3,)
        assert store.load_cluster_id() == "c" * 22
        assert [(t.name, t.partitions, dict(t.configs)) for t in store.load_topics()] == [
            ("orders", 3, {"retention.ms": "5"})
        ]
        assert store.load_broker_configs() == {"": {"message.max.bytes": "8"}}
        assert caplog.messages == [
            f"{tmp_path / 'm'}: format 1 raised to 3: older versions cannot read it from now on"
        ]
        assert store.load_acls() == []
        assert store.load_scram_credentials() == {}
        store.close()


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
@pytest.mark.parametrize("is_old", [False, True])
def test_the_file_is_its_owners_alone(tmp_path: Path, is_old: bool) -> None:
    """It has keys of passwords; so has the write-ahead log beside it, which a killed process leaves."""
    path = tmp_path / "m"
    if is_old:
        killed = MetadataStore(tmp_path / "killed", "c")
        for name in ("killed", "killed-wal"):
            copy = path.with_name(name.replace("killed", "m"))
            copy.write_bytes((tmp_path / name).read_bytes())
            copy.chmod(0o644)
        killed.close()
        for left in tmp_path.glob("killed*"):
            left.unlink()
    store = MetadataStore(path, "c")
    store.set_broker_config("1", {"a": "b"})
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) > 1
    store.close()


def test_credentials_change_together_and_are_read_back(tmp_path: Path) -> None:
    alice, bob = ("alice", 1), ("bob", 2)
    first, second = (create_credential(SCRAM_SHA_256, password) for password in ("one", "two"))
    store = MetadataStore(tmp_path / "m", "c")
    store.change_scram_credentials({alice: first, bob: first})
    store.change_scram_credentials({alice: second, bob: None})
    store.close()
    again = MetadataStore(tmp_path / "m", "c")
    assert again.load_scram_credentials() == {alice: second}
    again.close()


def test_unknown_users_are_invented_from_one_secret_for_ever(tmp_path: Path) -> None:
    """Of a file that an earlier version of format 3 wrote, too: it has none, and gets one."""
    secrets = []
    for _ in range(2):
        for _ in range(2):
            store = MetadataStore(tmp_path / "m", "c")
            secrets.append(store.decoy_secret)
            store.close()
        with closing(sqlite3.connect(tmp_path / "m")) as db:
            db.execute("DELETE FROM cluster WHERE name LIKE 'scram%'")
            db.commit()
    assert [len(each) for each in secrets] == [32] * 4
    assert secrets[0] == secrets[1] != secrets[2] == secrets[3]


def test_acls_change_together_and_are_read_back(tmp_path: Path) -> None:
    read, write = (
        AclBinding(
            ResourcePattern(AclResource.TOPIC, "orders", AclPattern.PREFIXED),
            AccessControlEntry("User:alice", "*", operation, AclPermission.ALLOW),
        )
        for operation in (AclOperation.READ, AclOperation.TWO_PHASE_COMMIT)
    )
    store = MetadataStore(tmp_path / "m", "c")
    store.change_acls(add=[read, read])
    store.change_acls(add=[write, read], remove=[])
    store.close()
    again = MetadataStore(tmp_path / "m", "c")
    assert set(again.load_acls()) == {read, write}
    again.change_acls(remove=[read])
    assert again.load_acls() == [write]
    again.close()


def test_the_file_alone_has_every_change(tmp_path: Path) -> None:
    """A copy of it, or what a killed process leaves, may lack the files beside it."""
    store = MetadataStore(tmp_path / "m", "c")
    read = AclBinding(
        ResourcePattern(AclResource.TOPIC, "orders", AclPattern.LITERAL),
        AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
    )
    store.change_acls(add=[read])
    (tmp_path / "copy").write_bytes((tmp_path / "m").read_bytes())
    store.close()
    copy = MetadataStore(tmp_path / "copy", "another", may_create=False)
    assert (copy.load_cluster_id(), copy.load_acls()) == ("c", [read])
    copy.close()


@pytest.mark.parametrize(
    "content", [b"", b"a file of something else", None], ids=["empty", "other", "damaged"]
)
def test_what_is_no_metadata_file_is_not_taken_for_a_new_one(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "m"
    store = MetadataStore(file, "c")
    store.create_topics([topic(f"orders-{number}") for number in range(100)])
    store.close()
    if content is None:
        half = file.stat().st_size // 2 // 4096 * 4096
        content = file.read_bytes()[:half] + bytes(4096) + file.read_bytes()[half + 4096 :]
    file.write_bytes(content)
    with pytest.raises(MetadataUnusable, match=str(file)):
        MetadataStore(file, "c", may_create=False)
    assert file.read_bytes() == content
