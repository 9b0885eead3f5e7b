"""Topics and their partitions: the metadata image that handlers read, and all changes to it.

A change is made durable in the metadata store first, then in the files, then in the image [MET-1]; a lock
serializes changes. A deleted topic leaves the image as soon as its deletion is durable. Its name is free once
its directories have been renamed, not before: a deletion that fails in between is retried automatically,
after a crash at the next start [MET-3]. Files are removed last, and nothing depends on when.
"""

import asyncio
import logging
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig, find_internal_problems, is_harmful
from tallystick.broker.metadata.store import MetadataStore, Topic, is_commit_in_doubt, is_rolled_back
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import TOPIC_NAME_LENGTH_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import frozen
from tallystick.storage.fs import is_disk_failure, is_transient
from tallystick.storage.log_dir import random_id
from tallystick.storage.validation import LogConfig

_log = logging.getLogger("tallystick.broker.topics")

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
COMPACT_CONFIGS: Final = MappingProxyType({"cleanup.policy": "compact"})


# Delay before a failed deletion is retried: doubled after each further failure.
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0

# Exceptions of a failed or full disk during a change of files or metadata.
_FAILURES: Final = (OSError, TallystickError, sqlite3.Error)


class TopicDeleted(TallystickError):
    """The awaited event will not happen: the topic was deleted."""


_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> Reject | None:
    """Refuse an illegal topic name, by Kafka's rules.

    Source: Topic.validate.
    """
    why = None
    if not name:
        why = "is empty"
    elif name in (".", ".."):
        why = "is a directory"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        why = f"has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL_NAME.fullmatch(name):
        why = "has a character that is not an ASCII letter, a digit, '.', '_' or '-'"
    return None if why is None else Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} {why}")


@frozen
class TopicSpec:
    """A topic to create."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


class PartitionStorage(Protocol):
    """Creates, opens and removes logs of partitions, one at a time; methods that are not `async` block."""

    def open_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    async def create_partition(self, topic: Topic, index: int, config: TopicConfig) -> Partition: ...

    def find_foreign_partitions(self, topic: Topic) -> tuple[TopicPartition, ...]: ...

    def transfer_directories(self, deleted: Topic, to: Topic) -> tuple[TopicPartition, ...]: ...

    async def rename_for_deletion(self, topic: Topic) -> None: ...

    def rename_for_deletion_now(self, topic: Topic) -> None: ...

    @property
    def has_pending_removals(self) -> bool: ...

    async def remove_deleted_logs(self) -> None: ...

    def report_failure(self, cause: Exception) -> None: ...

    def make_log_config(self, topic: str, config: TopicConfig) -> LogConfig: ...


class Topics:
    """All topics of the broker. Lives on the loop; owned by the broker."""

    def __init__(
        self,
        store: MetadataStore,
        files: PartitionStorage,
        worker: BlockingWorker,
        config: BrokerConfig,
        *,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._new_uuid = new_uuid
        self._store = store
        self._storage = files
        self._worker = worker
        self._config = config
        self._lock = asyncio.Lock()
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._partitions: dict[str, list[Partition]] = {}
        # Collisions: Kafka's metric names write '.' as '_', so two names may not differ in that alone.
        self._names_by_unified: dict[str, str] = {}
        self._partly_created: dict[
            str, Topic
        ] = {}  # in the metadata, but not all of their files could be created
        self._deletions_in_doubt: set[str] = set()  # out of the image, and their deletion is not durable yet
        self._unfinished_deletions: dict[uuid.UUID, Topic] = {}  # deleted, and their names are not free yet
        self._deletion_task: asyncio.Task[None] | None = None
        self._started = False

    # ----------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def list_names(self) -> list[str]:
        return sorted(self._by_name)

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def list_partitions_of(self, name: str) -> list[Partition]:
        """Return the partitions of a topic by index; none for an unknown topic."""
        return self._partitions.get(name, [])

    def find_partition(self, name: str, index: int) -> Partition | None:
        found = self._partitions.get(name)
        return found[index] if found is not None and 0 <= index < len(found) else None

    def list_partitions(self) -> list[Partition]:
        return [partition for found in self._partitions.values() for partition in found]

    @property
    def partition_count(self) -> int:
        return sum(map(len, self._partitions.values()))

    @property
    def _partitions_available(self) -> int:
        """Number of partitions that clients may still create; internal topics do not count."""
        internal = sum(len(self._partitions.get(name, ())) for name in INTERNAL_TOPICS)
        return self._config.max_partitions - (self.partition_count - internal)

    def resolve_config(self, topic: Topic) -> TopicConfig:
        config = self._config.make_topic_config(topic.configs)
        # Whatever is stored: only compaction may remove records of internal topics.
        return replace(config, cleanup_policy=("compact",)) if topic.name in INTERNAL_TOPICS else config

    # ---------------------------------------------------------------------- starting

    def load(self) -> None:
        """Open every log; finish deletions that a crash interrupted. Blocking: the broker is starting.

        Raises: CorruptLog, OSError, MetadataUnusable.
        """
        topics = {topic.name: topic for topic in self._store.load_topics()}
        for deleted in self._store.load_deleted_topics():
            self._resume_deletion(deleted, topics.get(deleted.name))
        for topic in map(self._drop_harmful_configs, topics.values()):
            config = self.resolve_config(topic)
            partitions = [self._storage.open_partition(topic, i, config) for i in range(topic.partitions)]
            self._add_to_image(topic, partitions)

    def _drop_harmful_configs(self, topic: Topic) -> Topic:
        """Return the topic without settings that could destroy its records.

        Earlier versions accepted them [TXN-15].
        """
        harmless = {name: value for name, value in topic.configs.items() if not is_harmful(name, value)}
        if topic.name not in INTERNAL_TOPICS or {**harmless, **COMPACT_CONFIGS} == topic.configs:
            return topic
        ignored = sorted(topic.configs.items() - harmless.items())
        _log.warning(
            "settings of %s that take records away are ignored, alter them: %s; its policy is `compact`",
            topic.name,
            ", ".join(f"{name}={value}" for name, value in ignored) or "no cleanup.policy of its own",
        )
        return replace(topic, configs=MappingProxyType({**harmless, **COMPACT_CONFIGS}))

    def _resume_deletion(self, deleted: Topic, successor: Topic | None) -> None:
        self._unfinished_deletions[deleted.topic_id] = deleted
        try:
            if successor is not None:
                # Earlier versions freed the name before the deletion was finished, and the successor took
                # over the remaining directories: they hold records acknowledged to its producers.
                for name in self._storage.transfer_directories(deleted, successor):
                    _log.warning("%s holds records of a deleted topic, too: its deletion had failed", name)
            self._storage.rename_for_deletion_now(deleted)
            self._store.forget_deleted([deleted.topic_id])
        except _FAILURES as exc:
            self._log_unfinished(deleted, exc)
        else:
            del self._unfinished_deletions[deleted.topic_id]

    def start(self) -> None:
        """Continue the deletions that `load` could not finish."""
        self._started = True
        self._schedule_deletions()

    async def stop(self) -> None:
        """End the background task; the next start continues its work."""
        self._started = False
        if self._deletion_task is not None:
            self._deletion_task.cancel()
            await asyncio.gather(self._deletion_task, return_exceptions=True)

    def _add_to_image(self, topic: Topic, partitions: list[Partition]) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._partitions[topic.name] = partitions
        self._names_by_unified[_unify_collision_chars(topic.name)] = topic.name

    def _remove_from_image(self, topic: Topic) -> None:
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        del self._partitions[topic.name], self._names_by_unified[_unify_collision_chars(topic.name)]

    # ---------------------------------------------------------------------- creating

    def check_creation(self, wanted: TopicSpec) -> Reject | None:
        """Check whether this topic would be created. Reads only; answers validate_only."""
        refused = check_topic_name(wanted.name)
        if refused is not None:
            return refused
        if wanted.name in self._by_name:
            return _reject_existing(wanted.name)
        if self.is_deleting(wanted.name):
            return _reject_being_deleted(wanted.name)
        if wanted.name in INTERNAL_TOPICS:
            # Groups and transactions need it: neither max.partitions nor a colliding name prevents it.
            return self.check_configs(wanted.name, wanted.configs)
        other = self._names_by_unified.get(_unify_collision_chars(wanted.name)) or _INTERNAL_BY_UNIFIED.get(
            _unify_collision_chars(wanted.name)
        )
        if other is not None:
            return Reject(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {wanted.name!r} differs from {other!r} only in '.' and '_'",
            )
        room = self._partitions_available
        if not 0 < wanted.partitions <= room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"{wanted.partitions} partitions; 1 to {room} can be made (max.partitions)",
            )
        return self.check_configs(wanted.name, wanted.configs)

    def check_configs(self, name: str, configs: Mapping[str, str]) -> Reject | None:
        """Check the settings for a topic of that name."""
        try:
            config = self._config.make_topic_config(configs)
        except BadConfig as exc:
            return Reject(ErrorCode.INVALID_CONFIG, str(exc))
        if name in INTERNAL_TOPICS:
            problems = list(find_internal_problems(configs, config))
            if problems:
                reason = f"topic {name!r} is the broker's own: {'; '.join(problems)}"
                return Reject(ErrorCode.INVALID_CONFIG, reason)
        return None

    async def create(self, wanted: TopicSpec) -> Topic | Reject:
        """Create a topic. If the disk is full, the next attempt or start finishes it."""
        try:
            return await self._create(wanted)
        except _FAILURES as exc:
            return self._reject_failed_change(f"topic {wanted.name!r} cannot be made", exc)

    def _reject_failed_change(self, what: str, exc: Exception) -> Reject:
        """Return the answer for a change that the disk refused. Raises `exc` if the disk is not the cause."""
        if is_commit_in_doubt(exc) or is_disk_failure(exc):
            # The change may be in the file: continuing without it could contradict the state after a restart.
            self._storage.report_failure(exc)
        elif not (is_rolled_back(exc) or isinstance(exc, TallystickError)) and not (
            isinstance(exc, OSError) and is_transient(exc)
        ):
            raise exc
        _log.error("%s: %s", what, exc)
        return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {exc}")

    async def _create(self, wanted: TopicSpec) -> Topic | Reject:
        async with self._lock:
            topic = self._partly_created.get(wanted.name)
            if topic is None:
                refused = self.check_creation(wanted)
                if refused is not None:
                    return refused
                configs = MappingProxyType(dict(wanted.configs))
                topic = Topic(wanted.name, random_id(self._new_uuid), wanted.partitions, configs)
                refused = self._refuse_foreign(topic)
                if refused is not None:
                    return refused
                await self._worker.run(lambda: self._store.create_topics([topic]))
                self._partly_created[topic.name] = topic
            self._add_to_image(topic, await self._open(topic, range(topic.partitions)))
            del self._partly_created[topic.name]
            _log.info("created topic %s, %d partitions", topic.name, topic.partitions)
            if (topic.partitions, topic.configs) == (wanted.partitions, wanted.configs):
                return topic
            return _reject_existing(topic.name)

    def _refuse_foreign(self, topic: Topic) -> Reject | None:
        """Refuse a topic if directories of another one of its name exist: they could not be opened."""
        foreign = self._storage.find_foreign_partitions(topic)
        if not foreign:
            return None
        return Reject(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"directories of another topic named {topic.name!r} are in the data directory, move them away: "
            + ", ".join(map(str, foreign)),
        )

    async def _open(self, topic: Topic, indexes: range) -> list[Partition]:
        config = self.resolve_config(topic)
        return [await self._storage.create_partition(topic, index, config) for index in indexes]

    async def create_if_absent(self, wanted: TopicSpec) -> Topic | Reject:
        """Return the topic of that name, after creating it if needed: auto-creation and internal topics."""
        made = await self.create(wanted)
        if isinstance(made, Reject) and made.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return self._by_name[wanted.name]
        return made

    async def grow(self, name: str, partitions: int) -> Topic | Reject:
        """Add partitions up to a total. After a failure, the next attempt or start finishes it."""
        try:
            return await self._grow(name, partitions)
        except _FAILURES as exc:
            return self._reject_failed_change(f"topic {name!r} cannot have {partitions} partitions", exc)

    async def _grow(self, name: str, partitions: int) -> Topic | Reject:
        async with self._lock:
            refused = self.check_growth(name, partitions)
            if refused is not None:
                return refused
            topic = self._by_name[name]
            grown = replace(topic, partitions=partitions)
            refused = self._refuse_foreign(grown)
            if refused is not None:
                return refused
            await self._worker.run(lambda: self._store.set_partitions({name: partitions}))
            added = await self._open(grown, range(topic.partitions, partitions))
            self._add_to_image(grown, self._partitions[name] + added)
            return grown

    def check_growth(self, name: str, partitions: int) -> Reject | None:
        """Check whether the topic could have this many partitions in all."""
        topic = self._by_name.get(name)
        if topic is None:
            return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        room = self._partitions_available
        if not topic.partitions < partitions <= topic.partitions + room:
            return Reject(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {topic.partitions} partitions, {partitions} were asked for; "
                f"{room} more can be made (max.partitions)",
            )
        return None

    # ---------------------------------------------------------------------- changing

    async def set_configs(self, name: str, configs: Mapping[str, str]) -> Reject | None:
        """Replace a topic's own settings."""
        return await self.alter_configs(name, lambda _: configs)

    async def alter_configs(
        self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Reject | None:
        """Change a topic's own settings.

        Args:
            change: returns the new settings for the present ones, called when its turn has come; its
                exceptions are raised here.
        """
        async with self._lock:
            topic = self._by_name.get(name)
            if topic is None:
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            configs = MappingProxyType(dict(change(topic.configs)))
            refused = self.check_configs(name, configs)
            if refused is not None:
                return refused
            changed = replace(topic, configs=configs)
            try:
                await self._worker.run(lambda: self._store.set_topic_config(name, configs))
            except _FAILURES as exc:
                return self._reject_failed_change(f"topic {name!r} cannot be configured", exc)
            self._by_name[name] = self._by_id[topic.topic_id] = changed
            self._apply_config(changed)
            return None

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed broker settings, which topics fall back to."""
        self._config = config
        for topic in self._by_name.values():
            self._apply_config(topic)

    def _apply_config(self, topic: Topic) -> None:
        config = self.resolve_config(topic)
        for partition in self._partitions[topic.name]:
            partition.apply_config(config, self._storage.make_log_config(topic.name, config))

    # ---------------------------------------------------------------------- deleting

    async def delete(
        self, name: str, refused: Callable[[Sequence[Partition]], Reject | None] = lambda partitions: None
    ) -> Reject | None:
        """Delete a topic, or continue a deletion that failed.

        Order: nothing of it is read again, whatever crashes, once it has left the image; when None is
            returned its name is free. Files that cannot be removed at once are removed later.

        Args:
            refused: looks at the partitions and returns a reason to refuse. Nothing is written to them after
                that.
        """
        async with self._lock:
            topic = self._by_name.get(name) or self._partly_created.get(name)
            if topic is not None:
                partitions = self.list_partitions_of(name)
                if (reason := refused(partitions)) is not None:
                    return reason
                try:
                    await self._delete_durably(topic)
                except _FAILURES as exc:
                    return self._reject_failed_change(f"topic {name!r} cannot be deleted", exc)
                for partition in partitions:
                    partition.fail(TopicDeleted(f"topic {name!r} was deleted"))
            elif not self.is_deleting(name):
                return Reject(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            await self._finish_deletions(name)
            if self.is_deleting(name):
                return _reject_being_deleted(name)
        await self._remove_deleted_logs()
        return None

    def is_deleting(self, name: str) -> bool:
        """Return whether a topic of that name is deleted and the name is not free yet."""
        return any(topic.name == name for topic in self._unfinished_deletions.values())

    def is_deletion_in_doubt(self, name: str) -> bool:
        """Return whether an absent topic may come back: its deletion is not durable yet."""
        return name in self._deletions_in_doubt

    @property
    def unfinished_deletions(self) -> int:
        """Number of deleted topics whose names are not free yet."""
        return len(self._unfinished_deletions)

    async def _delete_durably(self, topic: Topic) -> None:
        """Make the deletion durable, with the topic out of the image. Raises: sqlite3.Error, OSError."""
        partitions, begun = self._partitions.get(topic.name), self._partly_created.pop(topic.name, None)
        if partitions is not None:
            self._remove_from_image(topic)
        self._deletions_in_doubt.add(topic.name)
        try:
            await self._worker.run(lambda: self._store.delete_topics([topic]))
        except Exception:
            if partitions is not None:
                self._add_to_image(topic, partitions)
            if begun is not None:
                self._partly_created[topic.name] = begun
            raise
        finally:
            self._deletions_in_doubt.discard(topic.name)
        self._unfinished_deletions[topic.topic_id] = topic

    async def _finish_deletions(self, name: str | None = None) -> None:
        """Free the names of deleted topics, or of one. Failures are logged, and retried later."""
        for topic in [each for each in self._unfinished_deletions.values() if name in (None, each.name)]:
            try:
                await self._storage.rename_for_deletion(topic)
                await self._worker.run(partial(self._store.forget_deleted, [topic.topic_id]))
            except _FAILURES as exc:
                self._log_unfinished(topic, exc)
            else:
                del self._unfinished_deletions[topic.topic_id]
                _log.info("deleted topic %s", topic.name)

    def _log_unfinished(self, topic: Topic, exc: Exception) -> None:
        _log.error(
            "topic %s is deleted, but its name cannot be used again yet, and its room is not free: %s; "
            "this is tried again by itself",
            topic.name,
            exc,
        )
        self._schedule_deletions()
        if is_disk_failure(exc):
            self._storage.report_failure(exc)

    async def _remove_deleted_logs(self) -> None:
        try:
            await self._storage.remove_deleted_logs()
        except OSError as exc:
            _log.warning("files of deleted topics are still there, this is tried again by itself: %s", exc)
            self._schedule_deletions()

    def _schedule_deletions(self) -> None:
        """Start a task that finishes deletions, if there are any and none is running."""
        if (
            self._started
            and self._deletion_task is None
            and (self._unfinished_deletions or self._storage.has_pending_removals)
        ):
            self._deletion_task = asyncio.get_running_loop().create_task(
                self._retry_deletions(), name="finish deletions"
            )

    async def _retry_deletions(self) -> None:
        wait_s = RETRY_S
        try:
            while self._unfinished_deletions or self._storage.has_pending_removals:
                await asyncio.sleep(wait_s)
                async with self._lock:
                    await self._finish_deletions()
                await self._remove_deleted_logs()
                wait_s = min(2 * wait_s, RETRY_MAX_S)
        finally:
            self._deletion_task = None


def _reject_existing(name: str) -> Reject:
    return Reject(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic {name!r} already exists.")


def _reject_being_deleted(name: str) -> Reject:
    return Reject(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"topic {name!r} is deleted, and its directories cannot be given up yet: its name is free when they "
        "are, which is tried again and again; the broker's log says what is in the way",
    )


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")


_INTERNAL_BY_UNIFIED: Final = MappingProxyType(
    {_unify_collision_chars(name): name for name in INTERNAL_TOPICS}
)
