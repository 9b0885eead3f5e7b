"""The parts of an ACL: operation, resource, pattern and permission.

The numbers are the wire's. Source: Kafka AclOperation, ResourceType, PatternType, AclPermissionType; KIP-140,
KIP-290; KIP-939 "ACL Changes".
"""

from enum import IntEnum


class AclOperation(IntEnum):
    """The operation that an ACL allows or denies."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResource(IntEnum):
    """The resource type of an ACL."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """The pattern type of a resource name; ANY and MATCH (all that apply to a name) are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """The permission of an ACL; deny takes precedence over allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3
