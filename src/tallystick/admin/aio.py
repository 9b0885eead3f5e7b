"""Admin for asyncio: what an operator asks of a cluster, on the loop that calls."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tallystick.admin.listing import Answers
from tallystick.admin.model import ListedTransaction, ProducerState, TransactionDescription
from tallystick.admin.transactions import LIMIT_MS, AbortPlan, AbortSpec, HangingReport, Transactions
from tallystick.client.cluster import Cluster
from tallystick.client.config import AdminConfig
from tallystick.client.network import CLOSE_S
from tallystick.kernel.ids import Identity, TopicPartition


class Admin:
    """An administrator of one cluster.

        async with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
            report = await admin.find_hanging_transactions(topic="orders")

    Belongs to the loop it is first used on. Every call ends within `default.api.timeout.ms` [CLI-2]. What
    several brokers are asked comes with what some of them did not answer: see Answers [ADM-2].
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Raises: BadConfig with every problem at once."""
        self.config = AdminConfig.parse(config)
        self._cluster = Cluster(self.config.client)
        self._transactions = Transactions(self._cluster, self.config.default_api_timeout_ms)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """End every connection; again is harmless."""
        await self._cluster.close(timeout_s)

    def metrics(self) -> dict[str, float]:
        """What the network did, by Kafka's names."""
        return self._cluster.metrics()

    # ---------------------------------------------------------------------- transactions

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        coordinators: Sequence[int] | None = None,
    ) -> Answers[int, tuple[ListedTransaction, ...]]:
        """Transactional ids by the broker that coordinates them.

        Source: KIP-664, KIP-994 (duration), KIP-1152 (pattern of whole ids, RE2's dialect).
        Args:
            longer_than_ms: only what is open for longer; then only open states, unless `states` are given.
            coordinators: broker ids; all brokers if None.
        Raises: NotSupported for a broker that is none; Unreachable or TimedOut when none can be asked.
        """
        return await self._transactions.list(
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=transactional_id_pattern,
            coordinators=coordinators,
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> Answers[str, TransactionDescription]:
        """What the coordinators know of transactional ids; one nobody knows fails with IdExpired."""
        return await self._transactions.describe(transactional_ids)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """The producers that partitions remember: their leaders' view, or that of `broker`'s replicas."""
        return await self._transactions.describe_producers(partitions, broker)

    async def find_hanging_transactions(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        limit_ms: int = LIMIT_MS,
    ) -> HangingReport:
        """Every transaction open for longer than `limit_ms`, and whether anybody will end it.

        Source: KIP-664 "Finding Hanging Transactions"; `admin.hanging` says what each verdict rests on.
        Args: topic, partition, broker: where to look; everywhere without them.
        Raises: UnknownTopic, Unreachable, TimedOut. What single brokers or partitions failed with is in the
            report.
        """
        return await self._transactions.find_hanging(
            topic=topic, partition=partition, broker=broker, limit_ms=limit_ms
        )

    async def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """The transaction an abort would end, and what that would break. Changes nothing.

        Raises: NothingOpen, UnknownTopic, NotAuthorized.
        """
        return await self._transactions.plan_abort(spec)

    async def abort_transaction(self, what: AbortSpec | AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker into one partition, for exactly that transaction [ADM-3].

        Returns: False when an answer was lost and the transaction was found ended afterwards.
        Raises: NotSafe without `force` unless it hangs; NothingOpen; what the broker refuses it with.
        """
        plan = await self._transactions.plan_abort(what) if isinstance(what, AbortSpec) else what
        return await self._transactions.abort(plan, force=force)

    async def force_terminate_transaction(self, transactional_id: str, *, force: bool = False) -> Identity:
        """Abort what is open under an id, and fence its producer (KIP-939). Returns: the id's new pair.

        Raises: NotSafe without `force` for a transaction of two-phase commit; IdExpired for an unknown id.
        """
        return await self._transactions.force_terminate(transactional_id, force=force)
