"""Topics and their partitions: the image that handlers read, and the only way to change it.

A change is made durable in the metadata store first, then in the files, then in the image [MET-1]; the lock
makes changes one at a time. A deletion leaves the image as soon as it is durable, and its files after that;
a crash between the two is finished at the next start.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final, Protocol

from tallystick.broker.config import BrokerConfig
from tallystick.broker.metadata import MetadataStore, Topic
from tallystick.broker.partition import Partition
from tallystick.broker.topic_config import TopicConfig
from tallystick.broker.worker import Worker
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import TOPIC_NAME_LENGTH_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import frozen
from tallystick.storage.fs import is_passing
from tallystick.storage.log_dir import random_id
from tallystick.storage.validation import LogConfig

_log = logging.getLogger("tallystick.broker.topics")

GROUP_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL: Final = frozenset({GROUP_OFFSETS, TRANSACTION_STATE})


class TopicDeleted(TallystickError):
    """What was waited for will not come: the topic is gone."""


_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_name(name: str) -> Reject | None:
    """Refuse what cannot be a topic's name, with Kafka's rules.

    Source: Topic.validate.
    """
    why = None
    if not name:
        why = "is empty"
    elif name in (".", ".."):
        why = "is a directory"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        why = f"has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL.fullmatch(name):
        why = "has a character that is not an ASCII letter, a digit, '.', '_' or '-'"
    return None if why is None else Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} {why}")


@frozen
class NewTopic:
    """What somebody wants made."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


class PartitionFiles(Protocol):
    """Makes, opens and removes the logs of partitions, one at a time; what is not `async` blocks."""

    def open_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    async def make_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    async def remove(self, name: TopicPartition) -> None: ...

    def delete(self, name: TopicPartition) -> None: ...

    def log_config(self, topic: str, config: TopicConfig) -> LogConfig: ...


class Topics:
    """Lives on the loop; owned by the broker."""

    def __init__(
        self, store: MetadataStore, files: PartitionFiles, worker: Worker, config: BrokerConfig
    ) -> None:
        self._store = store
        self._files = files
        self._worker = worker
        self._config = config
        self._lock = asyncio.Lock()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._partitions: dict[str, list[Partition]] = {}
        # Collisions: Kafka's metric names write '.' as '_', so two names may not differ in that alone.
        self._folded: dict[str, str] = {}
        self._begun: dict[str, Topic] = {}  # in the metadata; the disk had no room for all of their files

    # ----------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> list[str]:
        return sorted(self._by_name)

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def partitions(self, name: str) -> list[Partition]:
        """The partitions of a topic by index; empty for a topic that is not there."""
        return self._partitions.get(name, [])

    def partition(self, name: str, index: int) -> Partition | None:
        found = self._partitions.get(name)
        return found[index] if found is not None and 0 <= index < len(found) else None

    def all_partitions(self) -> list[Partition]:
        return [partition for found in self._partitions.values() for partition in found]

    @property
    def partition_count(self) -> int:
        return sum(map(len, self._partitions.values()))

    def config_of(self, topic: Topic) -> TopicConfig:
        return self._config.topic(topic.configs)

    # ---------------------------------------------------------------------- starting

    def load(self) -> None:
        """Open every log; finish deletions a crash interrupted. Blocking: the broker is starting.

        Raises: CorruptLog, OSError, MetadataUnusable.
        """
        for topic in self._store.deleted_topics():
            for index in range(topic.partitions):
                self._files.delete(TopicPartition(topic.name, index))
            self._store.forget_deleted([topic.topic_id])
        for topic in self._store.topics():
            config = self.config_of(topic)
            partitions = [self._files.open_partition(topic, i, config) for i in range(topic.partitions)]
            self._enter(topic, partitions)

    def _enter(self, topic: Topic, partitions: list[Partition]) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._partitions[topic.name] = partitions
        self._folded[_fold(topic.name)] = topic.name

    def _leave(self, topic: Topic) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        del self._partitions[topic.name], self._folded[_fold(topic.name)]

    # ---------------------------------------------------------------------- creating

    def check_new(self, wanted: NewTopic) -> Reject | None:
        """Would this topic be made? Reads only; what validate_only answers."""
        refused = check_name(wanted.name)
        if refused is not None:
            return refused
        if wanted.name in self._by_name:
            return _exists(wanted.name)
        other = self._folded.get(_fold(wanted.name))
        if other is not None:
            return Reject(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {wanted.name!r} differs from {other!r} only in '.' and '_'",
            )
        room = self._config.max_partitions - self.partition_count
        if not 0 < wanted.partitions <= room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"{wanted.partitions} partitions; 1 to {room} can be made (max.partitions)",
            )
        return self.check_configs(wanted.configs)

    def check_configs(self, configs: Mapping[str, str]) -> Reject | None:
        """Are these a topic's settings?"""
        try:
            self._config.topic(configs)
        except BadConfig as exc:
            return Reject(ErrorCode.INVALID_CONFIG, str(exc))
        return None

    async def create(self, wanted: NewTopic) -> Topic | Reject:
        """Make a topic. Where the disk is full the next attempt, or start, finishes what was begun.

        Raises: OSError, StorageFailure.
        """
        try:
            return await self._create(wanted)
        except OSError as exc:
            return _if_full(wanted.name, exc)

    async def _create(self, wanted: NewTopic) -> Topic | Reject:
        async with self._lock:
            topic = self._begun.get(wanted.name)
            if topic is None:
                refused = self.check_new(wanted)
                if refused is not None:
                    return refused
                configs = MappingProxyType(dict(wanted.configs))
                topic = Topic(wanted.name, random_id(), wanted.partitions, configs)
                await self._worker.run(lambda: self._store.create_topics([topic]))
                self._begun[topic.name] = topic
            self._enter(topic, await self._open(topic, range(topic.partitions)))
            del self._begun[topic.name]
            _log.info("created topic %s, %d partitions", topic.name, topic.partitions)
            if (topic.partitions, topic.configs) == (wanted.partitions, wanted.configs):
                return topic
            return _exists(topic.name)

    async def _open(self, topic: Topic, indexes: range) -> list[Partition]:
        config = self.config_of(topic)
        return [await self._files.make_partition(topic, index, config) for index in indexes]

    async def create_if_absent(self, wanted: NewTopic) -> Topic | Reject:
        """The topic of that name, made if it is not there: auto-creation and internal topics."""
        made = await self.create(wanted)
        if isinstance(made, Reject) and made.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return self._by_name[wanted.name]
        return made

    async def grow(self, name: str, partitions: int) -> Topic | Reject:
        """Add partitions up to a total. Raises: OSError, StorageFailure."""
        try:
            return await self._grow(name, partitions)
        except OSError as exc:
            return _if_full(name, exc)

    async def _grow(self, name: str, partitions: int) -> Topic | Reject:
        async with self._lock:
            refused = self.check_growth(name, partitions)
            if refused is not None:
                return refused
            topic = self._by_name[name]
            grown = replace(topic, partitions=partitions)
            await self._worker.run(lambda: self._store.set_partitions({name: partitions}))
            added = await self._open(grown, range(topic.partitions, partitions))
            self._enter(grown, self._partitions[name] + added)
            return grown

    def check_growth(self, name: str, partitions: int) -> Reject | None:
        """Could the topic have this many partitions in all?"""
        topic = self._by_name.get(name)
        if topic is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        room = self._config.max_partitions - self.partition_count
        if not topic.partitions < partitions <= topic.partitions + room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {topic.partitions} partitions, {partitions} were asked for; "
                f"{room} more can be made (max.partitions)",
            )
        return None

    # ---------------------------------------------------------------------- changing

    async def configure(self, name: str, configs: Mapping[str, str]) -> Reject | None:
        """Replace a topic's own settings."""
        async with self._lock:
            topic = self._by_name.get(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            refused = self.check_configs(configs)
            if refused is not None:
                return refused
            changed = replace(topic, configs=MappingProxyType(dict(configs)))
            await self._worker.run(lambda: self._store.set_topic_config(name, configs))
            self._by_name[name] = self._by_id[topic.topic_id] = changed
            self._apply_config(changed)
            return None

    def reconfigure(self, config: BrokerConfig) -> None:
        """The broker settings that topics fall back to have changed."""
        self._config = config
        for topic in self._by_name.values():
            self._apply_config(topic)

    def _apply_config(self, topic: Topic) -> None:
        config = self.config_of(topic)
        for partition in self._partitions[topic.name]:
            partition.configure(config, self._files.log_config(topic.name, config))

    # ---------------------------------------------------------------------- deleting

    async def delete(
        self, name: str, refused: Callable[[Sequence[Partition]], Reject | None] = lambda partitions: None
    ) -> Reject | None:
        """Delete a topic and, before this returns, its files.

        Args:
            refused: looks at the partitions and says why not. Nothing is written to them after that look.
        """
        async with self._lock:
            topic = self._by_name.get(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            partitions = self._partitions[name]
            if (reason := refused(partitions)) is not None:
                return reason
            self._leave(topic)
            try:
                await self._worker.run(lambda: self._store.delete_topics([topic]))
            except Exception:
                self._enter(topic, partitions)
                raise
            for partition in partitions:
                partition.fail(TopicDeleted(f"topic {name!r} was deleted"))
            for index in range(topic.partitions):
                await self._files.remove(TopicPartition(name, index))
            await self._worker.run(lambda: self._store.forget_deleted([topic.topic_id]))
            _log.info("deleted topic %s", name)
            return None


def _exists(name: str) -> Reject:
    return Reject(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")


def _if_full(name: str, exc: OSError) -> Reject:
    if not is_passing(exc):
        raise exc
    _log.error("topic %s cannot be made: %s", name, exc)
    return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"topic {name!r} cannot be made: {exc}")


def _fold(name: str) -> str:
    return name.replace(".", "_")
