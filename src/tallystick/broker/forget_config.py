"""Take back stored settings of a stopped broker, whose start may fail because of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallystick.broker.metadata.store import FILE_NAME, MetadataStore
from tallystick.kernel.settings import BadConfig
from tallystick.storage.disk.fs import RealFileSystem
from tallystick.storage.log_dir import LOCK_FILE, DirectoryInUse

REMEDY: Final = "take one back with `tallystick broker --data-dir {} --forget-config NAME`"


def forget_configs(directory: Path, names: Sequence[str]) -> list[str]:
    """Remove settings that were stored while the broker ran; return what was removed, a line each.

    Args:
        names: `NAME` of the broker, for itself and as the default of all, or `TOPIC/NAME` of a topic.

    Raises: BadConfig if one of them is not stored, and nothing is removed; DirectoryInUse, MetadataUnusable.
    """
    if not (directory / FILE_NAME).exists():
        raise BadConfig(f"--forget-config: {directory} has no {FILE_NAME}: there are no stored settings")
    lock = RealFileSystem().lock(str(directory / LOCK_FILE))
    if lock is None:
        raise DirectoryInUse(str(directory), "a broker uses this data directory: delete the setting there")
    try:
        store = MetadataStore(directory / FILE_NAME, "", may_create=False)
        try:
            return _forget(store, names)
        finally:
            store.close()
    finally:
        lock.release()


def _forget(store: MetadataStore, names: Sequence[str]) -> list[str]:
    brokers = store.load_broker_configs()
    topics = {topic.name: dict(topic.configs) for topic in store.load_topics()}
    removed, problems = list[str](), list[str]()
    for name in names:
        topic, slash, setting = name.rpartition("/")
        owners = {topic: topics.get(topic, {})} if slash else brokers
        holders = [owner for owner, configs in owners.items() if configs.pop(setting, None) is not None]
        if slash:
            removed += [f"{setting} of topic {owner}" for owner in holders]
        else:
            removed += [f"{setting} of {f'broker {owner}' if owner else 'all brokers'}" for owner in holders]
        if not holders:
            problems.append(f"--forget-config {name}: is not stored")
    if problems:
        raise BadConfig("\n".join(problems))
    for broker, configs in brokers.items():
        store.set_broker_config(broker, configs)
    for topic in {name.rpartition("/")[0] for name in names} - {""}:
        store.set_topic_config(topic, topics[topic])
    return removed
