"""Parsing of the topics that consumers subscribe to: the only client metadata that the broker reads.

Metadata and assignments belong to the clients. All versions of the "consumer" protocol begin with
`int16 version, [string] topics`, and the broker needs the topics to know which offsets are in use.
"""

import struct
from typing import Final

from tallystick.broker.group.machine.model import ClassicGroup

SubscribedTopics = frozenset[str] | None

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def find_subscribed_topics(group: ClassicGroup) -> SubscribedTopics:
    """Return the topics that all members together subscribe to; None when they cannot be known.

    Cost: reads every member's metadata.
    """
    if not group.uses_consumer_protocol:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        metadata = member.find_metadata(group.protocol_name)
        member_topics = None if metadata is None else parse_topics(metadata)
        if member_topics is None:
            return None
        topics.update(member_topics)
    return frozenset(topics)


def parse_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Return the topics at the head of a consumer subscription; None for other bytes."""
    try:
        (count,) = _INT32.unpack_from(metadata, 2)
        at = 6
        topics = []
        # Every name takes at least two bytes: a higher count is invalid.
        if not 0 <= count <= (len(metadata) - at) // 2:
            return None
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, at)
            at += 2
            if not 0 <= length <= len(metadata) - at:
                return None
            topics.append(metadata[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
