"""The broker without its sockets, as handlers use it.

Lifecycle: `open` (blocking: locks the data directory, recovers the logs), `start` (timers, coordinators),
`stop`. It knows nothing of connections; `serve.py` assembles server, dispatcher and broker.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID, uuid4

from tallystick.broker.authorizer.acl_index import AclSettings
from tallystick.broker.authorizer.authorizer import ALLOW_ALL, Authorizer
from tallystick.broker.authorizer.standard_authorizer import StandardAuthorizer
from tallystick.broker.config.broker_config import BrokerConfig, list_ineffective
from tallystick.broker.config.dynamic_config import RereadConfig, build_effective_config, merge_reread
from tallystick.broker.config.endpoint import Endpoint
from tallystick.broker.config.setting_texts import is_secret
from tallystick.broker.coordinator.topics import (
    ConsumerOffsetsTopic,
    CoordinatorTopic,
    define_transaction_state_topic,
)
from tallystick.broker.group.coordinator import GroupCoordinator
from tallystick.broker.group.machine.model import GroupConfig
from tallystick.broker.metadata.acl_controller import AclController
from tallystick.broker.metadata.features import FinalizedFeatures
from tallystick.broker.metadata.scram_controller import ScramController
from tallystick.broker.metadata.store import FILE_NAME, STORAGE_FAILURES, ProducerIdBlock, is_rolled_back
from tallystick.broker.metadata.worker import BlockingWorker
from tallystick.broker.metrics.broker_metrics import BrokerMetrics
from tallystick.broker.partitions.data_directory import DataDirectory, StorageEnvironment
from tallystick.broker.partitions.descriptors import UNLIMITED, DescriptorBudget
from tallystick.broker.partitions.fetch_sessions import FetchSessionCache
from tallystick.broker.partitions.topic_controller import TopicController
from tallystick.broker.server.request_memory import RequestMemory
from tallystick.broker.txn.codec import check_version_downgrade
from tallystick.broker.txn.coordinator import TransactionCoordinator
from tallystick.broker.txn.machine.model import TxnConfig
from tallystick.broker.txn.markers import LocalMarkerWriter
from tallystick.broker.txn.ports import TxnSettings
from tallystick.broker.txn.start_comparison import (
    CleanStartComparison,
    UncleanStartComparison,
    create_clean_comparison,
    create_unclean_comparison,
)
from tallystick.kernel.clock import Clock
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject, TallystickError
from tallystick.kernel.ids import INT32_MAX, ProducerId
from tallystick.kernel.settings import BadConfig
from tallystick.security.sasl.scram import ScramMechanism
from tallystick.security.sasl.scram_decoys import FoundCredential

_log = logging.getLogger("tallystick.broker")


# Loads what settings name, given the names of those that were set; returns the function that puts it in use.
ChangePreparation = Callable[[BrokerConfig, Collection[str]], Awaitable[Callable[[], None]]]
# Two consumers of every partition, or very many of a few, have a fetch session each.
SESSION_PARTITIONS_FACTOR: Final = 2
UNPROTECTED_STORE: Final = (
    "a password would be stored where others can read it: take the rights of group and others from "
    f"{FILE_NAME} in the data directory (chmod 600), or give the key in a file without a password"
)


async def _prepare_nothing(config: BrokerConfig, touched: Collection[str]) -> Callable[[], None]:
    return lambda: None


class Broker:
    """One broker. Owned by `serve`; lives on the loop after `open`."""

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: Path,
        clock: Clock,
        disk: StorageEnvironment | None = None,
        *,
        descriptors: DescriptorBudget = UNLIMITED,
        new_uuid: Callable[[], UUID] = uuid4,
    ) -> None:
        """Create a broker that is not open.

        Args:
            descriptors: budget of open files, which limits max.partitions.
            new_uuid: returns the ids of topics and of members of groups.
        """
        self.descriptors = descriptors
        self._new_uuid = new_uuid
        self.static_config = config
        self.config = config
        self.clock = clock
        self.data_dir = data_dir
        self._storage_environment = disk
        self.worker = BlockingWorker()
        self.metrics = BrokerMetrics()
        self.producer_id_block = ProducerIdBlock()
        self.fetch_sessions = FetchSessionCache(
            config.max_incremental_fetch_session_cache_slots,
            lambda: SESSION_PARTITIONS_FACTOR * self.config.max_partitions,
            lambda: int.from_bytes(os.urandom(4), "big") & INT32_MAX,
        )
        self.authorizer: Authorizer = ALLOW_ALL
        self.acl_controller: AclController | None = None
        # Of the first listener, and of each: a client gets the one of the listener that it came in by.
        self.address = Endpoint("", 0)
        self.addresses: Mapping[str, Endpoint] = MappingProxyType({})
        self.failure: Exception | None = None
        self.failed_event = asyncio.Event()
        self.is_stopping = False
        # Bytes of answers that the peers have not read yet; set by the server.
        self.unsent_bytes: Callable[[], int] = lambda: 0
        # Loads what changed settings name, such as keys; returns what puts it in use. Set with the server.
        self.prepare_change: ChangePreparation = _prepare_nothing
        self.config_listeners: list[Callable[[BrokerConfig], None]] = []
        self.request_memory = RequestMemory(
            lambda: self.config.queued_max_request_bytes,
            lambda: self.unsent_bytes() <= self.config.queued_max_response_bytes,
        )
        # Held while a large request is decoded off the loop: one at a time, for all connections.
        self.decode_lock = asyncio.Lock()
        self._producer_id_lock = asyncio.Lock()
        self._alter_lock = asyncio.Lock()
        self._dynamic_configs: dict[str, dict[str, str]] = {}
        self._cached_txn_settings: tuple[BrokerConfig, int, TxnSettings] | None = None

    # ------------------------------------------------------------------------- life

    def open(self) -> None:
        """Lock the data directory and recover its logs. Blocking.

        Raises: DirectoryInUse, DataDirectoryUnusable, CorruptLog, MetadataUnusable, OSError.
        """
        self.data_directory = DataDirectory(
            self.data_dir,
            self.config,
            self.clock,
            self.fail,
            self._storage_environment,
            residents_max=self.descriptors.open_segments_max,
        )
        self.metadata_store = self.data_directory.open()
        self.cluster_id = self.metadata_store.load_cluster_id()
        self._dynamic_configs = self.metadata_store.load_broker_configs()
        _, orphans = build_effective_config(self.static_config, self._dynamic_configs)
        if orphans:
            _log.warning("stored settings of listeners that are gone are ignored: %s", ", ".join(orphans))
        self._warn_of_ineffective(name for layer in self._dynamic_configs.values() for name in layer)
        self.config = self._build_effective_config(self._dynamic_configs)
        self.data_directory.reconfigure(self.config)
        self._open_authorizer()
        self.scram_controller = ScramController(self.metadata_store, self.worker, self.fail)
        self.features = FinalizedFeatures(self.metadata_store, self.worker, self._gate_downgrade, self.fail)
        self.topic_controller = TopicController(
            self.metadata_store, self.data_directory, self.worker, self.config, new_uuid=self._new_uuid
        )
        self.topics = self.topic_controller.image
        self.topic_controller.load()
        self.data_directory.begin_leader_epochs()
        self.data_directory.report_recovery()
        self.groups = GroupCoordinator(
            ConsumerOffsetsTopic(self.topic_controller, lambda: self.config),
            make_group_config(self.config),
            self.clock,
            lambda: str(self._new_uuid()),
        )
        markers = LocalMarkerWriter(self.topics, self.groups, self.clock)
        # Before anything is written: the partitions are now as the last process left them.
        self.startup_comparison: UncleanStartComparison | CleanStartComparison | None = (
            create_clean_comparison(self.topics)
            if self.data_directory.had_clean_shutdown
            else create_unclean_comparison(self.topics, markers)
        )
        self.transactions = TransactionCoordinator(
            CoordinatorTopic(self.topic_controller, lambda: define_transaction_state_topic(self.config)),
            markers,
            self.generate_producer_id,
            self._get_txn_settings,
            self.clock,
            on_forced_outcome=self.metrics.count_forced_outcome,
        )

    def _open_authorizer(self) -> None:
        """Put the stored ACLs in force, if the settings name an authorizer."""
        if not self.config.authorizer_class_name:
            return
        authorizer = StandardAuthorizer(
            AclSettings(self.config.super_user_names, self.config.allow_everyone_if_no_acl_found)
        )
        self.acl_controller = AclController(self.metadata_store, self.worker, authorizer, self.fail)
        self.authorizer = authorizer

    async def start(self) -> None:
        """Start the background work: coordinators, syncing, housekeeping."""
        self.data_directory.start()
        self.topic_controller.deletions.start()
        self.groups.start()
        self.transactions.start(self.startup_comparison)

    async def stop(self) -> None:
        """Finish the work under way, and mark the directory as clean, so that no recovery is needed."""
        self.release_waiters()
        await self.transactions.stop()
        await self.groups.stop()
        await self.topic_controller.deletions.stop()
        self.worker.close()
        self.metadata_store.close()
        await self.data_directory.stop(clean=self.failure is None)

    def release_waiters(self) -> None:
        """Answer long polls and parked group requests now: the broker is stopping."""
        self.is_stopping = True
        self.transactions.begin_shutdown()
        self.groups.begin_shutdown()
        for partition in self.topics.list_partitions():
            partition.notify_waiters()

    def fail(self, cause: Exception) -> None:
        """Report that the disk failed. Nothing more is acknowledged, and the process ends [PRT-2]."""
        if self.failure is None:
            _log.critical("the data directory failed, so the broker stops: %s", cause)
            self.failure = cause
            for partition in self.topics.list_partitions():
                partition.fail(cause)
            self.failed_event.set()

    def find_scram_credential(self, mechanism: ScramMechanism, user: str) -> FoundCredential:
        """Return what a login of this user is checked with now, an invented credential if it is unknown."""
        return self.scram_controller.find(mechanism, user)

    def get_address(self, listener: str) -> Endpoint:
        """Return the advertised address of a listener."""
        return self.addresses.get(listener, self.address)

    # ------------------------------------------------------------------ configuration

    @property
    def dynamic_configs(self) -> Mapping[str, Mapping[str, str]]:
        """Settings changed at run time, by broker id as text; the empty text is for all brokers."""
        return MappingProxyType(self._dynamic_configs)

    def _build_effective_config(self, dynamic: Mapping[str, Mapping[str, str]]) -> BrokerConfig:
        config, _ = build_effective_config(self.static_config, dynamic)
        return self._limit_partitions(config)

    def _limit_partitions(self, config: BrokerConfig) -> BrokerConfig:
        return replace(config, max_partitions=min(config.max_partitions, self.descriptors.partitions_max))

    def check_dynamic_configs(self, broker: str, configs: Mapping[str, str]) -> BrokerConfig:
        """Return the configuration that results if `broker` has these dynamic settings. Raises: BadConfig."""
        dynamic = {**self._dynamic_configs, broker: dict(configs)}
        _, orphans = build_effective_config(self.static_config, dynamic)
        new = [name for name in orphans if name not in self._dynamic_configs.get(broker, {})]
        if new:
            names = ", ".join(each.name for each in self.static_config.make_listeners())
            raise BadConfig(f"{', '.join(new)}: there is no such listener, only {names}")
        return self._build_effective_config(dynamic)

    async def alter_dynamic_configs(
        self,
        broker: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        touched: Collection[str] = (),
        validate_only: bool = False,
    ) -> Reject | None:
        """Change the dynamic settings of a broker, or of all if the name is empty. Raises: BadConfig.

        Rejects with: KAFKA_STORAGE_ERROR; nothing is changed in this process.

        Args:
            change: returns the new settings for the present ones, called when its turn has come: changes are
                made one after another, and the settings of this broker and of all depend on each other.
            touched: names of the settings that the change sets, the same value as before among them.
            validate_only: check the change, files of keys included, and do not make it.
        """
        async with self._alter_lock:
            configs = dict(change(self._dynamic_configs.get(broker, {})))
            config = self.check_dynamic_configs(broker, configs)
            if any(is_secret(each) and each in configs for each in touched) and (
                not self.metadata_store.is_private
            ):
                raise BadConfig(UNPROTECTED_STORE)
            use_change = await self.prepare_change(config, touched)
            async with self.topic_controller.hold_topics(config):
                if validate_only:
                    return None
                try:
                    await self.worker.run(lambda: self.metadata_store.set_broker_config(broker, configs))
                except STORAGE_FAILURES as exc:
                    return self._reject_failed_change(exc)
                self._dynamic_configs[broker] = configs
                self._warn_of_ineffective(name for name in touched if name in configs)
                self._use_config(config, use_change)
                return None

    async def take_reread_config(self, read: BrokerConfig) -> RereadConfig:
        """Change what can be changed now of a configuration that was read again; return what that is.

        Settings that were changed at run time stay stronger. Raises: BadConfig; nothing has changed then.
        """
        async with self._alter_lock:
            reread = merge_reread(self.static_config, read)
            config, _ = build_effective_config(reread.static, self._dynamic_configs)
            config = self._limit_partitions(config)
            use_change = await self.prepare_change(config, reread.changed)
            async with self.topic_controller.hold_topics(config):
                self.static_config = reread.static
                self._use_config(config, use_change)
        return reread

    def _use_config(self, config: BrokerConfig, use_change: Callable[[], None]) -> None:
        self.config = config
        use_change()
        self.data_directory.reconfigure(config)
        self.topic_controller.reconfigure(config)
        for tell in self.config_listeners:
            tell(config)

    def _warn_of_ineffective(self, names: Iterable[str]) -> None:
        unused = list_ineffective(names)
        if unused:
            _log.warning("accepted, but without effect in this broker: %s", ", ".join(unused))

    def _reject_failed_change(self, exc: Exception) -> Reject:
        if not is_rolled_back(exc):
            # It may be in the file: continuing without it could contradict the state after a restart [MET-1].
            self.fail(exc)
        _log.error("settings cannot be changed: %s", exc)
        return Reject(ErrorCode.KAFKA_STORAGE_ERROR, f"settings cannot be changed: {exc}")

    def _get_txn_settings(self) -> TxnSettings:
        """Return the current settings; called at every decision, therefore cached."""
        version = self.transaction_version
        cached = self._cached_txn_settings
        if cached is None or cached[0] is not self.config or cached[1] != version:
            cached = self._cached_txn_settings = (
                self.config,
                version,
                make_txn_settings(self.config, version),
            )
        return cached[2]

    # ------------------------------------------------------------------------- others

    @property
    def transaction_version(self) -> int:
        """The finalized level of `transaction.version`: 0, 1 or 2."""
        return self.features.transaction_version

    @asynccontextmanager
    async def _gate_downgrade(self, level: int) -> AsyncIterator[Reject | None]:
        """Pause transactions while their level goes down; yield a reason to refuse that, if there is one."""
        async with self.transactions.pause_commands() as refusal:
            entries = self.transactions.list_entries()
            yield refusal or (
                entries if isinstance(entries, Reject) else check_version_downgrade(entries, level)
            )

    async def generate_producer_id(self) -> ProducerId:
        """Return an id that was never handed out before, by this or an earlier process [MET-2]."""
        async with self._producer_id_lock:
            producer_id = self.producer_id_block.claim_next()
            if producer_id is None:
                self.producer_id_block.refill(
                    await self.worker.run(self.metadata_store.allocate_producer_ids)
                )
                producer_id = self.producer_id_block.claim_next()
        if producer_id is None:
            raise TallystickError("the metadata store returned an empty block of producer ids")
        return producer_id


def make_txn_settings(config: BrokerConfig, transaction_version: int) -> TxnSettings:
    """Return the transaction coordinator's settings."""
    return TxnSettings(
        config=TxnConfig(
            transaction_max_timeout_ms=config.transaction_max_timeout_ms,
            transaction_two_phase_commit_enable=config.transaction_two_phase_commit_enable,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            transaction_version=transaction_version,
            remember_marker_offsets=config.flush_policy != "ack",
        ),
        abort_timed_out_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        remove_expired_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
    )


def make_group_config(config: BrokerConfig) -> GroupConfig:
    """Return the group coordinator's settings."""
    return GroupConfig(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
