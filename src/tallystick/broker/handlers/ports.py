"""Parts of the broker, one type each: a handler names those that it uses, and can reach no others."""

from typing import Protocol

from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.group.coordinator import GroupCoordinator
from tallystick.broker.partitions.topics import TopicsImage
from tallystick.broker.server.acl import Authorizer
from tallystick.broker.txn.coordinator import TransactionCoordinator


class HasConfig(Protocol):
    """The settings in force."""

    @property
    def config(self) -> BrokerConfig: ...


class HasTopics(Protocol):
    """The topics and partitions, to be read."""

    @property
    def topics(self) -> TopicsImage: ...


class HasGroups(Protocol):
    """The group coordinator."""

    @property
    def groups(self) -> GroupCoordinator: ...


class HasTransactions(Protocol):
    """The transaction coordinator."""

    @property
    def transactions(self) -> TransactionCoordinator: ...


class HasAuthorizer(Protocol):
    """The ACLs."""

    @property
    def authorizer(self) -> Authorizer: ...


class TopicsAndConfig(HasTopics, HasConfig, Protocol):
    """The topics, and the settings that place them on this broker."""


class TopicsAndGroups(HasTopics, HasGroups, Protocol):
    """What offsets of groups need."""


class TopicsAndAuthorizer(HasTopics, HasAuthorizer, Protocol):
    """What describing producers needs."""


class TransactionsAndAuthorizer(HasTransactions, HasAuthorizer, Protocol):
    """What any command to a transactional id needs."""


class TransactionsAndGroups(TransactionsAndAuthorizer, HasGroups, Protocol):
    """What adding a group's offsets to a transaction needs."""


class TransactionsAndTopics(TransactionsAndAuthorizer, HasTopics, Protocol):
    """What adding partitions to a transaction needs."""
