"""Admin, synchronous: `admin.aio.Admin` on the engine thread, with the same names.

A forked child has no engine thread; an Admin opened before the fork refuses every call there [CLI-61].
"""

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from tallystick.admin import aio
from tallystick.admin.listing import Answers
from tallystick.admin.model import ListedTransaction, ProducerState, TransactionDescription
from tallystick.admin.transactions import LIMIT_MS, AbortPlan, AbortSpec, HangingReport
from tallystick.client.blocking.thread import engine_thread
from tallystick.client.config import AdminConfig
from tallystick.client.network import CLOSE_S
from tallystick.kernel.ids import Identity, TopicPartition

T = TypeVar("T")

# Calls end by limits of their own, with better names; planning and doing have one each.
_LAST_RESORT: Final = 3


class Admin:
    """An administrator of one cluster.

        with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
            report = admin.find_hanging_transactions(topic="orders")

    May be used by many threads. Every call ends within `default.api.timeout.ms` [CLI-2]; what the
    methods take, return and raise is said in `admin.aio`.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Raises: BadConfig with every problem at once."""
        self.config = AdminConfig.parse(config)
        self._engine = engine_thread()
        self._admin = self._engine.do(lambda: aio.Admin(config), "Admin()")
        self._closed = False
        self._engine.opened(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End every connection. Takes `timeout_s` at most; again is harmless."""
        if self._closed:
            return
        self._closed = True
        self._engine.closed(self)
        if not self._engine.forked:
            self._engine.run(self._admin.close(timeout_s), timeout_s + CLOSE_S, "close()")

    def left_behind(self) -> None:
        """In a forked child: the engine thread refuses whatever is asked of it."""

    def metrics(self) -> dict[str, float]:
        """What the network did, by Kafka's names."""
        return self._engine.do(self._admin.metrics, "metrics()")

    def _run(self, call: Coroutine[object, object, T], doing: str) -> T:
        limit_s = self.config.default_api_timeout_ms / 1000
        return self._engine.run(call, _LAST_RESORT * limit_s + CLOSE_S, f"{doing}()")

    # ---------------------------------------------------------------------- transactions

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        coordinators: Sequence[int] | None = None,
    ) -> Answers[int, tuple[ListedTransaction, ...]]:
        """Transactional ids by the broker that coordinates them."""
        call = self._admin.list_transactions(
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            transactional_id_pattern=transactional_id_pattern,
            coordinators=coordinators,
        )
        return self._run(call, "list_transactions")

    def describe_transactions(self, transactional_ids: Iterable[str]) -> Answers[str, TransactionDescription]:
        """What the coordinators know of transactional ids; one nobody knows fails with IdExpired."""
        return self._run(self._admin.describe_transactions(transactional_ids), "describe_transactions")

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions remember: their leaders' view, or that of `broker`'s replicas."""
        return self._run(self._admin.describe_producers(partitions, broker=broker), "describe_producers")

    def find_hanging_transactions(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> HangingReport:
        """Every transaction open for longer than `limit_ms`, and whether anybody will end it."""
        call = self._admin.find_hanging_transactions(
            topic=topic, partition=partition, broker=broker, limit_ms=limit_ms
        )
        return self._run(call, "find_hanging_transactions")

    def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """The transaction an abort would end, and what that would break. Changes nothing."""
        return self._run(self._admin.plan_abort(spec), "plan_abort")

    def abort_transaction(self, what: AbortSpec | AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker into one partition, for exactly that transaction [ADM-3]."""
        return self._run(self._admin.abort_transaction(what, force=force), "abort_transaction")

    def force_terminate_transaction(self, transactional_id: str, *, force: bool = False) -> Identity:
        """Abort what is open under an id, and fence its producer (KIP-939). Returns: the id's new pair."""
        call = self._admin.force_terminate_transaction(transactional_id, force=force)
        return self._run(call, "force_terminate_transaction")
