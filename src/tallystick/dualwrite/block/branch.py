"""State of one Kafka cluster within a dual writer."""

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from tallystick.client.settings.config import ROLE_SETTINGS, ProducerConfig, is_client_setting
from tallystick.client.settings.kafka_names import RENAMED_SETTINGS
from tallystick.client.transactions.modes import Mode, list_modes
from tallystick.dualwrite.rules.model import NOTHING, StoredState
from tallystick.kernel.check import require
from tallystick.kernel.settings import BadConfig
from tallystick.kernel.value import replace

P = TypeVar("P")

_ADMIN_SETTINGS: Final = ROLE_SETTINGS["admin"]


class ClusterBranch(Generic[P]):
    """One cluster's side of a writer: a transactional id, its producer and its row."""

    def __init__(self, cluster: str, config: Mapping[str, object]) -> None:
        two_phase = {"transaction.two.phase.commit.enable": True} if not _configures_modes(config) else {}
        self.cluster = cluster
        self.config: Mapping[str, object] = {**config, **two_phase}
        producer_config = ProducerConfig.parse(self.config)
        if producer_config.transactional_id is None:
            raise BadConfig("transactional.id: must be set: it names this writer in the database, too")
        if not producer_config.modes:
            raise BadConfig("transaction.two.phase.commit.enable or tallystick.modes: one must be set")
        self.id: str = producer_config.transactional_id
        self.strongest_mode = list_modes(producer_config.modes)[0]
        self.timeout_ms = producer_config.transaction_timeout_ms
        self._max_block_ms = producer_config.max_block_ms
        self._request_timeout_ms = producer_config.client.request_timeout_ms
        self.cluster_id: str | None = None
        self.row: StoredState | None = None
        self.last_finished = NOTHING  # last transaction that this writer saw committed on both sides
        self._producer: P | None = None
        self.in_transaction = False
        self.is_decided = False  # the database has committed the open transaction: only a commit may end it

    @property
    def admin_config(self) -> Mapping[str, object]:
        """Admin client settings for the same cluster, which wait as long as its producer may."""
        shared = {
            name: value
            for name, value in self.config.items()
            if name in _ADMIN_SETTINGS or is_client_setting(name)
        }
        limit_ms = self._max_block_ms
        if limit_ms < self._request_timeout_ms:
            others = {name for name in shared if RENAMED_SETTINGS.get(name, name) == "request.timeout.ms"}
            shared = {name: value for name, value in shared.items() if name not in others}
            shared["request.timeout.ms"] = limit_ms
        return {**shared, "default.api.timeout.ms": limit_ms}

    @property
    def producer(self) -> P:
        return require(self._producer, "a producer before recover()")

    def set_producer(self, producer: P | None) -> None:
        self._producer = producer
        self.in_transaction = self.is_decided = False

    def detach_producer(self) -> P | None:
        """Detach and return the producer, or None."""
        producer, self._producer = self._producer, None
        self.in_transaction = self.is_decided = False
        return producer

    def require_row(self) -> StoredState:
        return require(self.row, "a row before recover()")

    def mark_decided(self, row: StoredState) -> None:
        """Adopt the row that the database has committed: Kafka can only commit now."""
        self.row = row
        self.is_decided = True

    def mark_finished(self) -> None:
        """Record that this writer has seen the transaction of the row committed on both sides."""
        self.in_transaction = self.is_decided = False
        self.last_finished = self.require_row().state

    def row_as_finished(self) -> StoredState:
        """Return the row, as settled if this writer has itself seen both sides committed."""
        row = self.require_row()
        return replace(row, settled=True) if row.state == self.last_finished else row


def never_expires(mode: Mode | None) -> bool:
    """Whether only a decision ends what a producer in this mode has prepared."""
    return mode is not None and mode.never_expires


def recovers_by_description(mode: Mode | None) -> bool:
    """Whether recovery in this mode describes an id before anybody initialises it."""
    return mode is not None and mode.recovers_by_description


def _configures_modes(config: Mapping[str, object]) -> bool:
    return bool({"transaction.two.phase.commit.enable", "tallystick.modes"} & config.keys())
