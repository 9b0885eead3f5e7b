"""Every stored setting can be taken back while the broker is stopped: its start may fail because of one."""

from pathlib import Path
from uuid import UUID

import pytest

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.forget_config import forget_configs
from tallystick.broker.metadata.store import FILE_NAME, MetadataStore, Topic
from tallystick.broker.serve import Service
from tallystick.cli.commands import broker
from tallystick.kernel.settings import BadConfig
from tallystick.storage.disk.fs import RealFileSystem
from tallystick.storage.log_dir import LOCK_FILE, DirectoryInUse

LOCATION = "listener.name.a.ssl.keystore.location"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    store = MetadataStore(tmp_path / FILE_NAME, "c")
    store.set_broker_config("1", {LOCATION: "/gone.pem", "max.connections": "0"})
    store.set_broker_config("", {"max.connections": "0", "message.max.bytes": "100"})
    store.create_topics([Topic("t", UUID(int=5), 1, {"retention.ms": "1", "segment.bytes": "20"})])
    store.close()
    return tmp_path


def test_a_start_names_the_stored_settings_and_the_way_to_take_one_back(directory: Path) -> None:
    config = BrokerConfig.parse({"log.dirs": str(directory), "listeners": "PLAINTEXT://127.0.0.1:0"})
    with pytest.raises(BadConfig) as caught:
        Service(config)
    text = str(caught.value)
    assert "max.connections" in text.splitlines()[0]
    assert f"{LOCATION}, max.connections, message.max.bytes" in text
    assert f"tallystick broker --data-dir {directory} --forget-config NAME" in text


def test_a_setting_is_removed_for_this_broker_and_for_all(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--forget-config", "max.connections", "--forget-config", "t/segment.bytes"]
    assert broker.main(["--data-dir", str(directory), *names]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "removed max.connections of all brokers",
        "removed max.connections of broker 1",
        "removed segment.bytes of topic t",
    ]
    store = MetadataStore(directory / FILE_NAME, "c")
    assert store.load_broker_configs() == {"1": {LOCATION: "/gone.pem"}, "": {"message.max.bytes": "100"}}
    assert [topic.configs for topic in store.load_topics()] == [{"retention.ms": "1"}]
    store.close()


@pytest.mark.parametrize("unknown", ["max.conections", "t/max.connections", "u/retention.ms", ""])
def test_what_is_not_stored_is_said_and_nothing_is_removed(unknown: str, directory: Path) -> None:
    with pytest.raises(BadConfig, match="is not stored"):
        forget_configs(directory, ["max.connections", unknown])
    assert forget_configs(directory, ["message.max.bytes", "max.connections"])


def test_a_running_broker_keeps_its_settings(directory: Path) -> None:
    lock = RealFileSystem().lock(str(directory / LOCK_FILE))
    assert lock is not None
    with pytest.raises(DirectoryInUse):
        forget_configs(directory, ["max.connections"])
    lock.release()


def test_a_directory_without_metadata_is_not_made_one(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"no metadata\.sqlite"):
        forget_configs(tmp_path / "none", ["max.connections"])
    assert not list(tmp_path.iterdir())
