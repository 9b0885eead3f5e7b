"""All changes to topics: creation, growth, settings, deletion. Part of what a controller does in Kafka.

A change is made durable in the metadata store first, then in the files, then in the image [MET-1]; a lock
serializes changes. A deleted topic leaves the image as soon as its deletion is durable; `TopicDeletions`
frees its name and removes its files.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final, Protocol

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig, is_harmful
from tallystick.broker.metadata.store import (
    STORAGE_FAILURES,
    MetadataStore,
    Topic,
    is_commit_in_doubt,
    is_rolled_back,
)
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.broker.partitions.partition import Partition
from tallystick.broker.partitions.topic_deletions import DeletedTopicStorage, TopicDeletions
from tallystick.broker.partitions.topics import (
    INTERNAL_TOPICS,
    TopicDeleted,
    TopicsImage,
    TopicSpec,
    check_topic_configs,
    check_topic_name,
    find_default_conflict,
    resolve_topic_config,
)
from tallystick.kernel.check import require
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace
from tallystick.storage.disk.fs import is_disk_failure, is_transient
from tallystick.storage.log_dir import make_random_id
from tallystick.storage.state.validation import LogConfig

_log = logging.getLogger("tallystick.broker.topics")

# Limit of topics named when a broker setting is refused.
CONFLICTS_REPORTED_MAX: Final = 10
# Any topic that will be created without settings of its own, as clients do by their first use of a name.
_PLAIN_TOPIC: Final = Topic("a new topic", uuid.UUID(int=0), 1)
_COMPACT_CONFIGS: Final = MappingProxyType({"cleanup.policy": "compact"})


class PartitionStorage(DeletedTopicStorage, Protocol):
    """Creates, opens and removes logs of partitions, one at a time; methods that are not `async` block."""

    def open_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    async def create_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    def find_foreign_partitions(self, topic: Topic) -> tuple[TopicPartition, ...]: ...

    def make_log_config(self, topic: str, config: TopicConfig) -> LogConfig: ...


class TopicController:
    """The only writer of the image of topics. Lives on the loop; owned by the broker."""

    def __init__(
        self,
        store: MetadataStore,
        files: PartitionStorage,
        worker: BlockingWorker,
        config: BrokerConfig,
        *,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.image = TopicsImage()
        self._new_uuid = new_uuid
        self._store = store
        self._storage = files
        self._worker = worker
        self._config = config
        self._lock = asyncio.Lock()
        self.deletions = TopicDeletions(store, files, worker, self._lock)
        # In the metadata, but not all of their files could be created.
        self._partly_created: dict[str, Topic] = {}

    def load(self) -> None:
        """Open every log; finish deletions that a crash interrupted. Blocking: the broker is starting.

        Raises: BadConfig, for stored settings of a topic; CorruptLog, OSError, MetadataUnusable.
        """
        topics = {topic.name: topic for topic in self._store.load_topics()}
        for deleted in self._store.load_deleted_topics():
            self.deletions.resume(deleted, topics.get(deleted.name))
        for topic in map(_drop_harmful_configs, topics.values()):
            try:
                config = resolve_topic_config(self._config, topic)
            except BadConfig as exc:
                raise BadConfig(
                    f"topic {topic.name}: {exc}\nset while the broker ran; take it back with"
                    f" `tallystick broker --data-dir DIRECTORY --forget-config {topic.name}/NAME`"
                ) from exc
            conflict = find_default_conflict(self._config, topic)
            if conflict is not None:
                # A refusal would keep all topics from their clients.
                _log.error(
                    "a broker default is not used for a topic, whose own settings hold; change either: %s",
                    conflict,
                )
            partitions = [self._storage.open_partition(topic, i, config) for i in range(topic.partitions)]
            self.image.add(topic, partitions)

    # ---------------------------------------------------------------------- creating

    def check_creation(self, spec: TopicSpec) -> Reject | None:
        """Check whether this topic would be created. Reads only; answers validate_only."""
        refusal = check_topic_name(spec.name)
        if refusal is not None:
            return refusal
        if self.image.find(spec.name) is not None:
            return _reject_existing(spec.name)
        if self.deletions.holds_name(spec.name):
            return _reject_being_deleted(spec.name)
        if spec.name in INTERNAL_TOPICS:
            # Groups and transactions need it: neither max.partitions nor a colliding name prevents it.
            return check_topic_configs(self._config, spec.name, spec.configs)
        other = self.image.find_colliding_name(spec.name)
        if other is not None:
            return Reject(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {spec.name!r} differs from {other!r} only in '.' and '_', which metric names cannot"
                " distinguish",
            )
        room = self._partitions_available
        if not 0 < spec.partitions <= room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"{spec.partitions} partitions were requested, but 1 to {room} can be created"
                " (max.partitions)",
            )
        return check_topic_configs(self._config, spec.name, spec.configs)

    async def create(self, spec: TopicSpec) -> Topic | Reject:
        """Create a topic. If the disk is full, the next attempt or start finishes it."""
        try:
            return await self._create(spec)
        except STORAGE_FAILURES as exc:
            return self._reject_failed_change(f"topic {spec.name!r} cannot be created", exc)

    def _reject_failed_change(self, operation: str, exc: Exception) -> Reject:
        """Return the answer for a change that the disk refused. Raises `exc` if the disk is not the cause."""
        if is_commit_in_doubt(exc) or is_disk_failure(exc):
            # The change may be in the file: continuing without it could contradict the state after a restart.
            self._storage.report_failure(exc)
        elif not (is_rolled_back(exc) or isinstance(exc, TallystickError)) and not (
            isinstance(exc, OSError) and is_transient(exc)
        ):
            raise exc
        _log.error("%s: %s", operation, exc)
        return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"{operation}: {exc}")

    async def _create(self, spec: TopicSpec) -> Topic | Reject:
        async with self._lock:
            topic = self._partly_created.get(spec.name)
            if topic is None:
                refusal = self.check_creation(spec)
                if refusal is not None:
                    return refusal
                configs = MappingProxyType(dict(spec.configs))
                topic = Topic(spec.name, make_random_id(self._new_uuid), spec.partitions, configs)
                refusal = self._refuse_foreign(topic)
                if refusal is not None:
                    return refusal
                await self._worker.run(lambda: self._store.create_topics([topic]))
                self._partly_created[topic.name] = topic
            self.image.add(topic, await self._open(topic, range(topic.partitions)))
            del self._partly_created[topic.name]
            _log.info("created topic %s, %d partitions", topic.name, topic.partitions)
            if (topic.partitions, topic.configs) == (spec.partitions, spec.configs):
                return topic
            return _reject_existing(topic.name)

    def _refuse_foreign(self, topic: Topic) -> Reject | None:
        """Refuse a topic if directories of another one of its name exist: they could not be opened."""
        foreign = self._storage.find_foreign_partitions(topic)
        if not foreign:
            return None
        return Reject(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"topic {topic.name!r} was not created, as the data directory has"
            " directories of another topic of that name. Move them out of it:"
            " " + ", ".join(map(str, foreign)),
        )

    async def _open(self, topic: Topic, indexes: range) -> list[Partition]:
        config = resolve_topic_config(self._config, topic)
        return [await self._storage.create_partition(topic, index, config) for index in indexes]

    async def create_if_absent(self, spec: TopicSpec) -> Topic | Reject:
        """Return the topic of that name, after creating it if needed: auto-creation and internal topics."""
        # The client that needs the topic may leave before it is there; creating it goes on.
        result = await asyncio.shield(self.create(spec))
        if isinstance(result, Reject) and result.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return self.image.find(spec.name) or result
        return result

    async def grow(self, name: str, partitions: int) -> Topic | Reject:
        """Add partitions up to a total. After a failure, the next attempt or start finishes it."""
        try:
            return await self._grow(name, partitions)
        except STORAGE_FAILURES as exc:
            return self._reject_failed_change(f"topic {name!r} cannot have {partitions} partitions", exc)

    async def _grow(self, name: str, partitions: int) -> Topic | Reject:
        async with self._lock:
            refusal = self.check_growth(name, partitions)
            if refusal is not None:
                return refusal
            topic = require(self.image.find(name), "only an existing topic can grow")
            grown = replace(topic, partitions=partitions)
            refusal = self._refuse_foreign(grown)
            if refusal is not None:
                return refusal
            await self._worker.run(lambda: self._store.set_partitions({name: partitions}))
            new_partitions = await self._open(grown, range(topic.partitions, partitions))
            self.image.add(grown, self.image.list_partitions_of(name) + new_partitions)
            return grown

    def check_growth(self, name: str, partitions: int) -> Reject | None:
        """Check whether the topic could have this many partitions in all."""
        topic = self.image.find(name)
        if topic is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        room = self._partitions_available
        if not topic.partitions < partitions <= topic.partitions + room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {topic.partitions} partitions, and {partitions} were requested; {room}"
                " more can be created (max.partitions)",
            )
        return None

    # ---------------------------------------------------------------------- changing

    async def alter_configs(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Reject | None:
        """Change a topic's own settings.

        Args:
            change: returns the new settings for the present ones, called when its turn has come; its
                exceptions are raised here.
        """
        async with self._lock:
            topic = self.image.find(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            configs = MappingProxyType(dict(change(topic.configs)))
            refusal = check_topic_configs(self._config, name, configs)
            if refusal is not None:
                return refusal
            altered_topic = replace(topic, configs=configs)
            try:
                await self._worker.run(lambda: self._store.set_topic_config(name, configs))
            except STORAGE_FAILURES as exc:
                return self._reject_failed_change(f"topic {name!r} cannot be configured", exc)
            self.image.add(altered_topic, self.image.list_partitions_of(name))
            self._apply_config(altered_topic)
            return None

    @asynccontextmanager
    async def hold_topics(self, config: BrokerConfig) -> AsyncIterator[None]:
        """Check that every topic can have these broker settings, and let no topic change until the exit.

        Raises: BadConfig with the topics whose own settings they contradict, and did not before.
        """
        async with self._lock:
            conflicts = [
                conflict
                for topic in [*self.image, *self._partly_created.values(), _PLAIN_TOPIC]
                if (conflict := find_default_conflict(config, topic)) is not None
                and find_default_conflict(self._config, topic) is None
            ]
            if conflicts:
                more = len(conflicts) - CONFLICTS_REPORTED_MAX
                raise BadConfig(
                    "\n".join(conflicts[:CONFLICTS_REPORTED_MAX])
                    + (f"\nand {more} more topics" if more > 0 else "")
                )
            yield

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed broker settings, which topics fall back to."""
        self._config = config
        for topic in self.image:
            self._apply_config(topic)

    def _apply_config(self, topic: Topic) -> None:
        config = resolve_topic_config(self._config, topic)
        for partition in self.image.list_partitions_of(topic.name):
            partition.apply_config(config, self._storage.make_log_config(topic.name, config))

    # ---------------------------------------------------------------------- deleting

    async def delete(
        self, name: str, check: Callable[[Sequence[Partition]], Reject | None] = lambda partitions: None
    ) -> Reject | None:
        """Delete a topic, or continue a deletion that failed.

        Order: nothing of it is read again, whatever crashes, once it has left the image; when None is
            returned its name is free. Files that cannot be removed immediately are removed later.

        Args:
            check: looks at the partitions and returns a reason to refuse. Nothing is written to them after
                that.
        """
        async with self._lock:
            topic = self.image.find(name) or self._partly_created.get(name)
            if topic is not None:
                partitions = self.image.list_partitions_of(name)
                if (reason := check(partitions)) is not None:
                    return reason
                try:
                    await self._delete_durably(topic)
                except STORAGE_FAILURES as exc:
                    return self._reject_failed_change(f"topic {name!r} cannot be deleted", exc)
                for partition in partitions:
                    partition.fail(TopicDeleted(f"topic {name!r} was deleted"))
            elif not self.deletions.holds_name(name):
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            await self.deletions.finish(name)
            if self.deletions.holds_name(name):
                return _reject_being_deleted(name)
        await self.deletions.remove_files()
        return None

    async def _delete_durably(self, topic: Topic) -> None:
        """Make the deletion durable, with the topic out of the image. Raises: sqlite3.Error, OSError."""
        partly_created = self._partly_created.pop(topic.name, None)
        try:
            with self.image.withdraw(topic):
                await self._worker.run(lambda: self._store.delete_topics([topic]))
        except Exception:
            if partly_created is not None:
                self._partly_created[topic.name] = partly_created
            raise
        self.deletions.add(topic)

    @property
    def _partitions_available(self) -> int:
        """Number of partitions that clients may still create; internal topics do not count."""
        internal = sum(len(self.image.list_partitions_of(name)) for name in INTERNAL_TOPICS)
        return self._config.max_partitions - (self.image.partition_count - internal)


def _drop_harmful_configs(topic: Topic) -> Topic:
    """Return the topic without settings that could destroy its records.

    Earlier versions accepted them [TXN-15].
    """
    harmless = {name: value for name, value in topic.configs.items() if not is_harmful(name, value)}
    if topic.name not in INTERNAL_TOPICS or {**harmless, **_COMPACT_CONFIGS} == topic.configs:
        return topic
    harmful = sorted(topic.configs.items() - harmless.items())
    _log.warning(
        "settings of %s that would delete its records are ignored, as its policy is `compact`; remove them:"
        " %s",
        topic.name,
        ", ".join(f"{name}={value}" for name, value in harmful) or "no cleanup.policy of its own",
    )
    return replace(topic, configs=MappingProxyType({**harmless, **_COMPACT_CONFIGS}))


def _reject_existing(name: str) -> Reject:
    return Reject(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")


def _reject_being_deleted(name: str) -> Reject:
    return Reject(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"topic {name!r} was deleted, but its directories could not be renamed yet, so its name is still in"
        " use. The broker retries; its log says why",
    )
