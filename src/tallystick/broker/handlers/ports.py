"""Broker interfaces for handlers: each handler names a narrow port and can reach nothing else.

A part (`Has...`) is one thing of the broker. A port is a set of parts, what the handlers of one subject need.
Every port of a handler has the authorizer, so that each can ask `broker.authorizer.allows(context, operation,
resource)` with the context of its request. `BrokerPorts` has all parts: the broker as dispatch passes it on.

Protocols fit by their members: a port need not name those that functions shared by handlers ask for.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from tallystick.broker.authorizer.authorizer import Authorizer
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.group.coordinator import GroupCoordinator
from tallystick.broker.metadata.acl_controller import AclController
from tallystick.broker.metadata.features import FinalizedFeatures
from tallystick.broker.metadata.scram_controller import ScramController
from tallystick.broker.metrics.broker_metrics import BrokerMetrics
from tallystick.broker.partitions.data_directory import DataDirectory
from tallystick.broker.partitions.fetch_sessions import FetchSessionCache
from tallystick.broker.partitions.topic_controller import TopicController
from tallystick.broker.partitions.topics import TopicsImage
from tallystick.broker.server.request_memory import RequestMemory
from tallystick.broker.txn.coordinator import TransactionCoordinator
from tallystick.kernel.clock import Clock
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import ProducerId

# ------------------------------------------------------------------------------- parts


class HasAuthorizer(Protocol):
    """The ACLs."""

    @property
    def authorizer(self) -> Authorizer: ...


class HasAclController(Protocol):
    """The only writer of ACLs; None without an authorizer."""

    @property
    def acl_controller(self) -> AclController | None: ...


class HasScramController(Protocol):
    """The only writer of SCRAM credentials."""

    @property
    def scram_controller(self) -> ScramController: ...


class HasConfig(Protocol):
    """The settings in force."""

    @property
    def config(self) -> BrokerConfig: ...


class HasConfigLayers(Protocol):
    """The sources of settings, and changes to those of the broker."""

    @property
    def static_config(self) -> BrokerConfig: ...

    @property
    def dynamic_configs(self) -> Mapping[str, Mapping[str, str]]: ...

    async def alter_dynamic_configs(
        self,
        broker: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        touched: Collection[str] = (),
        validate_only: bool = False,
    ) -> Reject | None: ...


class HasAddress(Protocol):
    """The cluster, and its advertised address."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def address(self) -> Endpoint: ...

    def get_address(self, listener: str) -> Endpoint:
        """Return the advertised address of a listener."""
        ...


class HasFeatures(Protocol):
    """The finalized features."""

    @property
    def features(self) -> FinalizedFeatures: ...


class HasClock(Protocol):
    """The clock."""

    @property
    def clock(self) -> Clock: ...


class HasMetrics(Protocol):
    """The metrics, to be counted in."""

    @property
    def metrics(self) -> BrokerMetrics: ...


class HasDataDirectory(Protocol):
    """The data directory."""

    @property
    def data_dir(self) -> Path: ...

    @property
    def data_directory(self) -> DataDirectory: ...


class HasTopics(Protocol):
    """The topics and partitions, to be read."""

    @property
    def topics(self) -> TopicsImage: ...


class HasTopicController(Protocol):
    """The only writer of topics."""

    @property
    def topic_controller(self) -> TopicController: ...


class HasGroups(Protocol):
    """The group coordinator."""

    @property
    def groups(self) -> GroupCoordinator: ...


class HasTransactions(Protocol):
    """The transaction coordinator."""

    @property
    def transactions(self) -> TransactionCoordinator: ...


class HasProducerIds(Protocol):
    """The source of producer ids."""

    async def generate_producer_id(self) -> ProducerId: ...


class HasRequestMemory(Protocol):
    """The bound on the memory of requests, and the turn to decode a large one."""

    @property
    def request_memory(self) -> RequestMemory: ...

    @property
    def decode_lock(self) -> asyncio.Lock: ...


class HasFetches(Protocol):
    """State that fetches share: sessions, unsent responses, and the end of long polls."""

    @property
    def fetch_sessions(self) -> FetchSessionCache: ...

    @property
    def unsent_bytes(self) -> Callable[[], int]: ...

    @property
    def is_stopping(self) -> bool: ...


# ------------------------------------------ ports of functions that several handlers share


class ConfigViewPort(HasConfig, HasConfigLayers, Protocol):
    """View of each setting with its origins."""


class OpenTransactionsPort(HasConfig, HasMetrics, HasTransactions, Protocol):
    """Guard against deleting the data of an open transaction."""


class VerificationPort(HasMetrics, HasTransactions, Protocol):
    """Verifier that a transaction includes a partition."""


# --------------------------------------------------------- topics and the cluster itself


class TopicsPort(HasAuthorizer, HasConfig, HasTopics, Protocol):
    """Broker interface for reading topics, and the settings that place them on this broker."""


class TopicControllerPort(HasAuthorizer, HasConfig, HasTopics, HasTopicController, Protocol):
    """Broker interface for adding partitions."""


class ConfigsPort(HasAuthorizer, HasConfig, HasConfigLayers, HasTopics, HasTopicController, Protocol):
    """Broker interface for reading and changing settings, including those of a new topic."""


class LogDirsPort(HasAuthorizer, HasDataDirectory, HasTopics, Protocol):
    """Broker interface for describing the data directory."""


class ClusterPort(HasAuthorizer, HasAddress, HasClock, HasConfig, Protocol):
    """Broker interface for describing the cluster and its one node."""


class MetadataPort(HasAuthorizer, HasAddress, HasConfig, HasTopics, HasTopicController, Protocol):
    """Broker interface for Metadata: the cluster, and the topics, which it may create."""


class AclsPort(HasAuthorizer, HasAclController, Protocol):
    """Broker interface for describing and changing ACLs."""


class ScramCredentialsPort(HasAuthorizer, HasScramController, Protocol):
    """Broker interface for describing and changing SCRAM credentials."""


class FeaturesPort(HasAuthorizer, HasFeatures, Protocol):
    """Broker interface for reading and changing the finalized features."""


class ApiVersionsPort(HasAuthorizer, HasAddress, HasConfig, HasFeatures, Protocol):
    """Broker interface for the first request of a connection."""


# ----------------------------------------------------------------------------- groups


class GroupsPort(HasAuthorizer, HasGroups, Protocol):
    """Broker interface for the members of a group."""


class OffsetsPort(HasAuthorizer, HasGroups, HasTopics, Protocol):
    """Broker interface for committed offsets."""


class DeletionPort(HasAuthorizer, HasConfig, HasGroups, HasMetrics, HasTopics, HasTransactions, Protocol):
    """Broker interface for deleting records, groups and their offsets."""


class TopicDeletionPort(
    HasAuthorizer, HasConfig, HasGroups, HasMetrics, HasTopics, HasTopicController, HasTransactions, Protocol
):
    """Broker interface for deleting topics."""


# ------------------------------------------------------------------------ transactions


class TransactionsPort(HasAuthorizer, HasClock, HasTransactions, Protocol):
    """Broker interface for commands to a transactional id."""


class ProducerIdsPort(HasAuthorizer, HasClock, HasProducerIds, HasTransactions, Protocol):
    """Broker interface for allocating producer ids."""


class TxnPartitionsPort(HasAuthorizer, HasClock, HasTopics, HasTransactions, Protocol):
    """Broker interface for adding partitions to a transaction."""


class TxnOffsetsPort(HasAuthorizer, HasClock, HasGroups, HasMetrics, HasTopics, HasTransactions, Protocol):
    """Broker interface for a group's offsets in a transaction."""


class TxnMarkersPort(HasAuthorizer, HasClock, HasConfig, HasGroups, HasTopics, HasTransactions, Protocol):
    """Broker interface for writing markers: the partitions, and the groups whose offsets they decide."""


class CoordinatorsPort(HasAuthorizer, HasAddress, HasConfig, HasGroups, HasTransactions, Protocol):
    """Broker interface for FindCoordinator."""


# ----------------------------------------------------------------------------- records


class ProducePort(
    HasAuthorizer, HasClock, HasConfig, HasMetrics, HasRequestMemory, HasTopics, HasTransactions, Protocol
):
    """Broker interface for Produce."""


class FetchPort(HasAuthorizer, HasClock, HasConfig, HasFetches, HasRequestMemory, HasTopics, Protocol):
    """Broker interface for Fetch."""


# --------------------------------------------------------------------------------- all


class BrokerPorts(
    HasAuthorizer,
    HasAclController,
    HasScramController,
    HasConfig,
    HasConfigLayers,
    HasAddress,
    HasFeatures,
    HasClock,
    HasMetrics,
    HasDataDirectory,
    HasTopics,
    HasTopicController,
    HasGroups,
    HasTransactions,
    HasProducerIds,
    HasRequestMemory,
    HasFetches,
    Protocol,
):
    """Every part: the broker, whose handlers choose among them."""
