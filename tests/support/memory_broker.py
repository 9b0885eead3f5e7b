"""A whole broker without sockets, on an in-memory disk: requests go in as bytes, answers out as values."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.loops import Turn as Turn
from tests.support.loops import on_a_loop as on_a_loop

from harness.memory_fs import MemoryFileSystem
from harness.sim.machine import InMemoryMetadataStore
from tallystick.broker.authorizer.acl_index import SUPPORTED_OPERATIONS, format_operations
from tallystick.broker.authorizer.authorizer import (
    AuthorizableRequestContext,
    Operation,
    References,
    ResourceType,
    count_one,
)
from tallystick.broker.authorizer.bindings import ResourcePattern
from tallystick.broker.authorizer.known_rights import KnownRights
from tallystick.broker.broker import Broker
from tallystick.broker.config.broker_config import BrokerConfig
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.handlers import HANDLERS
from tallystick.broker.metadata.store import MetadataStore
from tallystick.broker.partitions.data_directory import StorageEnvironment
from tallystick.broker.partitions.descriptors import UNLIMITED, DescriptorBudget
from tallystick.broker.partitions.topics import TopicSpec
from tallystick.broker.server.request_context import RequestContext
from tallystick.broker.txn.coordinator import TransactionCoordinator
from tallystick.broker.txn.machine.commands import MarkerRequest
from tallystick.broker.txn.machine.model import DecidedPhase
from tallystick.broker.txn.marker_sender import MarkerResult
from tallystick.kernel.ids import TopicPartition
from tallystick.protocol import decode, encode
from tallystick.protocol.apis import API_SPECS, ApiKey
from tallystick.protocol.messages.cluster.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tallystick.security.principals import ANONYMOUS, Principal
from tallystick.testing import FakeClock

SETTINGS = {
    "flush.policy": "os",
    "log.reserve.bytes": "0",
    "log.dirs": "data",
    "transaction.two.phase.commit.enable": "true",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
}


class DenyTable:
    """Allows everything except the rows; a type without a name denies every resource of it."""

    is_configured = True

    def __init__(self) -> None:
        self.denied: set[tuple[Operation, ResourcePattern | ResourceType]] = set()

    def allows(
        self,
        context: AuthorizableRequestContext,
        operation: Operation,
        resource: ResourcePattern,
        *,
        references: References = count_one,
        log_denied: bool = True,
    ) -> bool:
        return self.denied.isdisjoint({(operation, resource), (operation, resource.resource_type)})

    def allows_any(
        self, context: AuthorizableRequestContext, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return (operation, resource_type) not in self.denied

    def find_authorized_operations(
        self, context: AuthorizableRequestContext, resource: ResourcePattern
    ) -> int:
        operations = SUPPORTED_OPERATIONS[resource.resource_type]
        return format_operations(each for each in operations if self.allows(context, each, resource))


class HeldMarkers:
    """Markers stay under way, so that tests can see transactions that are decided and not complete."""

    def __init__(self) -> None:
        self.to_write: list[TopicPartition] = []
        self.written: set[TopicPartition] = set()

    def write(
        self, send: MarkerRequest, partition: TopicPartition, coordinator_epoch: int
    ) -> "MarkerResult | Any":
        self.to_write.append(partition)
        return None if partition in self.written else asyncio.get_running_loop().create_future()


class MemoryBroker:
    """A test's view of a broker; `broker` is the real one."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clock: FakeClock = broker.clock  # type: ignore[assignment]
        self.known_rights: dict[tuple[Principal, str], KnownRights] = {}
        self.table = DenyTable()
        if broker.acl_controller is None:
            broker.authorizer = self.table

    async def ask(
        self,
        request: Any,
        version: int,
        client_id: str = "client",
        *,
        principal: Principal = ANONYMOUS,
        host: str = "10.0.0.1",
    ) -> Any:
        """Send a request through its bytes, and decode the answer from its bytes."""
        api = next(spec for spec in API_SPECS.values() if isinstance(request, spec.request))
        known = self.known_rights.setdefault((principal, host), {})  # as those of one connection
        context = RequestContext(
            api.key, version, 1, client_id, host, 1, principal=principal, known_rights=known
        )
        answer = HANDLERS[api.key].run(self.broker, memoryview(encode(request, version)), context)
        parts = answer if isinstance(answer, list) or answer is None else await answer
        assert parts is not None
        return decode(api.response, b"".join(parts), version)

    async def make_topic(self, name: str, partitions: int = 2) -> None:
        await self.broker.topic_controller.create_if_absent(TopicSpec(name, partitions))

    def deny(self, *rows: tuple[Operation, ResourcePattern | ResourceType]) -> None:
        """Deny exactly these from now on."""
        self.table.denied = set(rows)


def memory_disk(fs: MemoryFileSystem | None = None) -> StorageEnvironment:
    """Return a disk that can be passed from one broker to the next."""
    fs = fs or MemoryFileSystem()
    stores: list[InMemoryMetadataStore] = []

    def opened(
        path: Path, cluster_id: str, make_room: Callable[[], None], *, may_create: bool
    ) -> MetadataStore:
        if not stores:
            stores.append(InMemoryMetadataStore(cluster_id))
            fs.open_append(str(path)).sync()
        return stores[0].reopen(make_room)

    return StorageEnvironment(fs=fs, open_metadata=opened)


@asynccontextmanager
async def memory_broker(
    disk: StorageEnvironment | None = None,
    *,
    markers: HeldMarkers | None = None,
    descriptors: DescriptorBudget = UNLIMITED,
    **settings: str,
) -> AsyncIterator[MemoryBroker]:
    """Run a broker, and stop it at the end; it may still be reading its logs when the block begins."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    config = BrokerConfig.parse(SETTINGS | given)
    broker = Broker(config, Path("data"), FakeClock(), disk or memory_disk(), descriptors=descriptors)
    broker.address = Endpoint("h", 9092)
    broker.open()
    if markers is not None:
        coordinator = broker.transactions
        broker.transactions = TransactionCoordinator(
            coordinator._topic,
            markers,
            broker.generate_producer_id,
            coordinator._settings,
            broker.clock,
        )
    await broker.start()
    try:
        yield MemoryBroker(broker)
    finally:
        await broker.stop()


async def set_level(desk: MemoryBroker, level: int, upgrade_type: int = 2, *, check: bool = False) -> int:
    """Finalize `transaction.version` at a level; return the error code."""
    update = FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=upgrade_type
    )
    answer = await desk.ask(UpdateFeaturesRequest(feature_updates=(update,), validate_only=check), 2)
    return int(answer.error_code)


async def loaded(desk: MemoryBroker) -> None:
    """Wait until the transaction log has been read."""
    while desk.broker.transactions._loader.loading_task is not None:
        await desk.broker.transactions._loader.loading_task


async def completed(desk: MemoryBroker) -> None:
    """Wait until every decided transaction has its markers."""
    for _ in range(1_000):
        entries = desk.broker.transactions.list_entries()
        assert isinstance(entries, tuple)
        if not any(isinstance(entry.phase, DecidedPhase) for entry in entries):
            return
        await Turn()
    raise AssertionError("markers are still on their way")


def versions(key: ApiKey) -> Any:
    return pytest.mark.parametrize(
        "version", range(API_SPECS[key].min_version, API_SPECS[key].max_version + 1)
    )
