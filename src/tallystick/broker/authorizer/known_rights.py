"""Cache of a connection's rights, so that a repeated request skips the authorizer.

An authorizer leaves here what it has allowed. Each set of names is of one requester and one right; the
authorizer makes, fills and empties it, and the connections of the requester share it. It is emptied in place
before other ACLs are in force [ACL-1]: a connection that still has it finds nothing.
"""

from typing import Final, NewType
from uuid import UUID

from tallystick.protocol.acls import AclOperation, AclResource

# An operation on a type of resource, as a number, because it is a key of dictionaries on hot paths.
Right = NewType("Right", int)
TOPIC_IDS_MAX: Final = 20_000


def make_right(operation: AclOperation, resource_type: AclResource) -> Right:
    """Return the right to perform an operation on resources of a type."""
    return Right(operation << 8 | resource_type)


WRITE_TOPIC: Final = make_right(AclOperation.WRITE, AclResource.TOPIC)
READ_TOPIC: Final = make_right(AclOperation.READ, AclResource.TOPIC)
WRITE_TRANSACTIONAL_ID: Final = make_right(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID)


class AllowedNames:
    """Names of resources on which one requester is known to have one right.

    names       of resources
    topic_ids   of some of those topics, as numbers, which hash faster than UUIDs
    checks      how often a handler has found an answer here, and asked no further
    """

    __slots__ = ("checks", "names", "topic_ids")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.topic_ids: set[int] = set()
        self.checks = 0

    def add_id(self, topic_id: UUID, name: str) -> None:
        """Remember the id of a topic as well. The ids are of topics that exist, or did: they need a bound."""
        if name in self.names:
            if len(self.topic_ids) >= TOPIC_IDS_MAX:
                self.topic_ids.clear()
            self.topic_ids.add(topic_id.int)

    def clear(self) -> None:
        """Forget all names."""
        self.names.clear()
        self.topic_ids.clear()
        self.checks = 0


# What is known of a connection's requester. It belongs to one principal at one host, and ends with them.
KnownRights = dict[Right, AllowedNames]
# Of a right of which nothing is known.
NO_NAMES: Final = AllowedNames()


def keep_id(rights: KnownRights, right: Right, topic_id: UUID, name: str) -> None:
    """Leave the id of a topic with the connection if the right to its name is known to exist."""
    known = rights.get(right)
    if known is not None:
        known.add_id(topic_id, name)
