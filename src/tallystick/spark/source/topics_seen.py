"""The topics of a source, from several answers of the cluster. Pure.

One answer that lacks a topic says little: a broker may be behind, or a right may be missing for a moment. So
topics are requested several times before they count as gone. The topic id (KIP-516) tells a topic that was
deleted and created again from one that was away.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from tallystick.client.errors import BrokerRefused
from tallystick.client.net.metadata import TopicInfo
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.primitives import NIL
from tallystick.spark.options.source_options import Assigned, ConsumerStrategy, Matching, Subscribed
from tallystick.spark.protocol.offsets import Offsets

AWAY_MS_MAX: Final = 30_000
"""The time in which a topic is requested before it counts as gone; at most default.api.timeout.ms."""

_PAUSES: Final = (1, 2, 4, 8, 15)
"""Between the answers, as shares of that time."""


class TopicsSeen(Value, kw_only=True):
    """The topics of a source, in one answer or in several.

    partitions  those that any of the answers had
    topic_ids   by name; nil where the cluster has none
    refusals    the cluster's words on topics that were asked for by name and that no answer had
    """

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, UUID]
    refusals: Mapping[str, BrokerRefused] = MappingProxyType({})

    def merge(self, later: "TopicsSeen") -> "TopicsSeen":
        """Return what both have; where they differ, the later one counts."""
        topic_ids = {**self.topic_ids, **later.topic_ids}
        refusals = {**self.refusals, **later.refusals}
        return TopicsSeen(
            partitions=self.partitions | later.partitions,
            topic_ids=topic_ids,
            refusals={name: each for name, each in refusals.items() if name not in topic_ids},
        )


def build_topics_seen(
    topics: Iterable[TopicInfo], strategy: ConsumerStrategy, refusals: Mapping[str, BrokerRefused]
) -> TopicsSeen:
    """Return the view of one answer, with the partitions that the options name."""
    infos = list(topics)
    partitions = frozenset(TopicPartition(each.name, number) for each in infos for number in each.partitions)
    return TopicsSeen(
        partitions=partitions & set(strategy.partitions) if isinstance(strategy, Assigned) else partitions,
        topic_ids={each.name: each.id for each in infos},
        refusals=refusals,
    )


def is_named(strategy: ConsumerStrategy, at: TopicPartition) -> bool:
    """Tell whether the options name this partition."""
    match strategy:
        case Subscribed(topics=names):
            return at.topic in names
        case Matching():
            return strategy.matches(at.topic)
        case Assigned(partitions=partitions):
            return at in partitions


def find_unseen(strategy: ConsumerStrategy, view: TopicsSeen) -> frozenset[TopicPartition | str]:
    """Return the topics or partitions that the options name and no answer had."""
    match strategy:
        case Subscribed(topics=names):
            return frozenset(names) - view.topic_ids.keys()
        case Assigned(partitions=partitions):
            return frozenset(partitions) - view.partitions
        case Matching():
            return frozenset()


def find_away(strategy: ConsumerStrategy, view: TopicsSeen, positions: Offsets) -> frozenset[TopicPartition]:
    """Return the partitions that were read, that the options still name and that no answer had."""
    return frozenset(at for at in positions if at not in view.partitions and is_named(strategy, at))


def plan_pauses(api_timeout_ms: int) -> tuple[float, ...]:
    """Return the pauses between questions, in seconds."""
    share_s = min(AWAY_MS_MAX, api_timeout_ms) / 1000 / sum(_PAUSES)
    return tuple(pause * share_s for pause in _PAUSES)


def describe_recreated(former_ids: Mapping[str, UUID], view: Mapping[str, UUID]) -> dict[str, str]:
    """Return a description of the loss for each topic that has another id than the one known so far."""
    return {
        name: f"{name} was deleted and made anew since it was last read (topic id {former_ids[name]}, "
        f"{topic_id} now)"
        for name, topic_id in sorted(view.items())
        if former_ids.get(name, NIL) != NIL and topic_id not in (NIL, former_ids[name])
    }
