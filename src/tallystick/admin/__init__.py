"""Administration of a cluster: what it holds, which transactions are open or hang, and how to end them.

    from tallystick.admin import AbortSpec, Admin, ConfigResource, NewTopic, NotSafe

The names are imported on first use.
"""

from typing import TYPE_CHECKING

from tallystick import _lazy

if TYPE_CHECKING:
    from tallystick.admin.acls import Acl, AclFilter, PartlyDeleted
    from tallystick.admin.admin_call import Answers
    from tallystick.admin.client import Admin
    from tallystick.admin.configs import ConfigResource, ConfigValue, ResourceType
    from tallystick.admin.errors import BrokerDown, NothingOpen, NotSafe
    from tallystick.admin.scram import (
        ScramCredentialInfo,
        UserScramCredentialDeletion,
        UserScramCredentialUpsertion,
    )
    from tallystick.admin.topics import EARLIEST, LATEST, MAX_TIMESTAMP, NewTopic
    from tallystick.admin.txn.hanging import HangingVerdict
    from tallystick.admin.txn.transaction_log import TransactionLogFollower
    from tallystick.admin.txn.transactions import AbortPlan, AbortSpec, HangingReport, OpenTransactionsReport
    from tallystick.protocol.acls import AclOperation, AclPattern, AclPermission, AclResource
    from tallystick.protocol.transaction_history import TransactionTransition, TransitionKind

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AbortPlan",
    "AbortSpec",
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPattern",
    "AclPermission",
    "AclResource",
    "Admin",
    "Answers",
    "BrokerDown",
    "ConfigResource",
    "ConfigValue",
    "HangingReport",
    "HangingVerdict",
    "NewTopic",
    "NotSafe",
    "NothingOpen",
    "OpenTransactionsReport",
    "PartlyDeleted",
    "ResourceType",
    "ScramCredentialInfo",
    "TransactionLogFollower",
    "TransactionTransition",
    "TransitionKind",
    "UserScramCredentialDeletion",
    "UserScramCredentialUpsertion",
]

if not TYPE_CHECKING:
    _PLACES = {
        "admin.acls": ("Acl", "AclFilter", "PartlyDeleted"),
        "admin.client": ("Admin",),
        "admin.configs": ("ConfigResource", "ConfigValue", "ResourceType"),
        "admin.errors": ("BrokerDown", "NothingOpen", "NotSafe"),
        "admin.txn.hanging": ("HangingVerdict",),
        "admin.admin_call": ("Answers",),
        "admin.scram": (
            "ScramCredentialInfo",
            "UserScramCredentialDeletion",
            "UserScramCredentialUpsertion",
        ),
        "admin.topics": ("EARLIEST", "LATEST", "MAX_TIMESTAMP", "NewTopic"),
        "admin.txn.transaction_log": ("TransactionLogFollower",),
        "admin.txn.transactions": ("AbortPlan", "AbortSpec", "HangingReport", "OpenTransactionsReport"),
        "protocol.acls": ("AclOperation", "AclPattern", "AclPermission", "AclResource"),
        "protocol.transaction_history": ("TransactionTransition", "TransitionKind"),
    }
    __getattr__ = _lazy.attributes(
        __name__,
        {name: f"tallystick.{place}:{name}" for place, names in _PLACES.items() for name in names},
    )
