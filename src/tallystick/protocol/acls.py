"""What a rule of access control is made of: a broker asks by it, an administrator sets it.

The numbers are the wire's. Source: Kafka AclOperation, ResourceType, PatternType, AclPermissionType; KIP-140,
KIP-290; KIP-939 "ACL Changes".
"""

from enum import IntEnum


class AclOperation(IntEnum):
    """What somebody wants to do."""

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
    """What it is done to."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """How a resource's name is meant; ANY and MATCH (whatever applies to a name) are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(IntEnum):
    """Deny wins over allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3
