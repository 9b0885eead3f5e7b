"""Topics and their partitions as handlers read them, and the rules for their names and settings.

The image holds what is durable: `TopicController` changes it after the metadata store has answered [MET-1].
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from msgspec import field

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.topic_config import TopicConfig, find_internal_problems, resolve_lag_conflict
from tallystick.broker.metadata.store import Topic
from tallystick.broker.partitions.partition import Partition
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.limits import TOPIC_NAME_LENGTH_MAX
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import Value

CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})

TopicKey = str | uuid.UUID
"""A topic as a request identifies it: by id from Produce 13 and Fetch 13 on (KIP-516), by name before."""

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class TopicDeleted(TallystickError):
    """The awaited event will not happen: the topic was deleted."""


class TopicSpec(Value):
    """A topic to create."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


def check_topic_name(name: str) -> Reject | None:
    """Refuse an illegal topic name, by Kafka's rules.

    Source: Topic.validate.
    """
    problem = None
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is a directory"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = f"has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    elif not _LEGAL_NAME.fullmatch(name):
        problem = "has a character that is not an ASCII letter, a digit, '.', '_' or '-'"
    return (
        None
        if problem is None
        else Reject(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} {problem}")
    )


def check_topic_configs(config: BrokerConfig, name: str, configs: Mapping[str, str]) -> Reject | None:
    """Check the settings for a topic of that name."""
    try:
        topic_config = config.make_topic_config(configs)
    except BadConfig as exc:
        return Reject(ErrorCode.INVALID_CONFIG, str(exc))
    if name in INTERNAL_TOPICS:
        problems = list(find_internal_problems(configs, topic_config))
        if problems:
            reason = f"topic {name!r} is the broker's own: {'; '.join(problems)}"
            return Reject(ErrorCode.INVALID_CONFIG, reason)
    return None


def resolve_topic_config(config: BrokerConfig, topic: Topic) -> TopicConfig:
    """Return a topic's effective settings: its own, and the broker's where it has none.

    A broker default that contradicts the topic's own setting is not used: the topic stays readable. Raises:
    BadConfig if its own settings are wrong.
    """
    try:
        topic_config = config.make_topic_config(topic.configs)
    except BadConfig:
        topic_config = config.make_topic_config(resolve_lag_conflict(topic.configs))
    # Whatever is stored: only compaction may remove records of internal topics.
    return (
        replace(topic_config, cleanup_policy=("compact",)) if topic.name in INTERNAL_TOPICS else topic_config
    )


def find_default_conflict(config: BrokerConfig, topic: Topic) -> str | None:
    """Return how the broker's defaults contradict a topic's own settings, None if they do not."""
    try:
        config.make_topic_config(topic.configs)
    except BadConfig as exc:
        own = ", ".join(f"{name}={value}" for name, value in sorted(topic.configs.items()))
        return f"topic {topic.name!r} ({own or 'without settings of its own'}): {exc}"
    return None


class TopicsImage:
    """All topics of the broker. Lives on the loop; changed by the broker's `TopicController` alone."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._partitions: dict[str, list[Partition]] = {}
        self._names_by_unified: dict[str, str] = {}
        self._withdrawn: set[str] = set()

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
        partitions = self._partitions.get(name)
        return partitions[index] if partitions is not None and 0 <= index < len(partitions) else None

    def list_partitions(self) -> list[Partition]:
        return [partition for partitions in self._partitions.values() for partition in partitions]

    @property
    def partition_count(self) -> int:
        return sum(map(len, self._partitions.values()))

    def find_colliding_name(self, name: str) -> str | None:
        """Return the existing or internal topic whose name differs from this one in '.' and '_' alone.

        Kafka's metric names write '.' as '_', so two topics may not differ in that alone.

        Source: Topic.hasCollision.
        """
        key = _unify_collision_chars(name)
        return self._names_by_unified.get(key) or _INTERNAL_BY_UNIFIED.get(key)

    def is_deletion_in_doubt(self, name: str) -> bool:
        """Return whether an absent topic may come back: its deletion is not durable yet."""
        return name in self._withdrawn

    # ---------------------------------------------------------------------- changing

    def add(self, topic: Topic, partitions: list[Partition]) -> None:
        """Add a topic, or replace its definition and its partitions."""
        self._by_name[topic.name] = self._by_id[topic.topic_id] = topic
        self._partitions[topic.name] = partitions
        self._names_by_unified[_unify_collision_chars(topic.name)] = topic.name

    def remove(self, topic: Topic) -> None:
        """Remove a topic and its partitions."""
        del self._by_name[topic.name], self._by_id[topic.topic_id]
        del self._partitions[topic.name], self._names_by_unified[_unify_collision_chars(topic.name)]

    @contextmanager
    def withdraw(self, topic: Topic) -> Iterator[None]:
        """Hide a topic while its deletion is made durable, and show it again if that fails.

        The topic may be one whose files could not all be created, which the image does not show.
        """
        partitions = self._partitions.get(topic.name)
        if partitions is not None:
            self.remove(topic)
        self._withdrawn.add(topic.name)
        try:
            yield
        except Exception:
            if partitions is not None:
                self.add(topic, partitions)
            raise
        finally:
            self._withdrawn.discard(topic.name)


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")


_INTERNAL_BY_UNIFIED: Final = MappingProxyType(
    {_unify_collision_chars(name): name for name in INTERNAL_TOPICS}
)
