"""Admin for asyncio: what an operator asks of a cluster, on the loop that calls."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tallystick.admin import acls, cluster_view, configs, groups, topics
from tallystick.admin.acls import Acl, AclFilter
from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.configs import ConfigResource, ConfigValue
from tallystick.admin.groups import GroupDescription, ListedGroup
from tallystick.admin.listing import Answers, Asker
from tallystick.admin.model import ListedTransaction, ProducerState, TransactionDescription
from tallystick.admin.topics import CreatedTopic, NewTopic
from tallystick.admin.transactions import LIMIT_MS, AbortPlan, AbortSpec, HangingReport, Transactions
from tallystick.client.config import AdminConfig
from tallystick.client.net.cluster import Cluster
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.net.network import CLOSE_S
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
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
        self._cluster = Cluster(self.config.client, topics_idle_ms=self.config.client.metadata_max_age_ms)
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

    def _asker(self) -> Asker:
        limit_ms = self.config.default_api_timeout_ms
        return Asker(self._cluster, self._cluster.deadline("default.api.timeout.ms", limit_ms))

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

    # -------------------------------------------------------------------------- topics

    async def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Answers[str, CreatedTopic]:
        """Make topics.

        One that was made by an attempt whose answer was lost fails with TOPIC_ALREADY_EXISTS and an unknown
        effect.
        """
        return await topics.create(self._asker(), new_topics, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> Answers[str, None]:
        """Delete topics and what is in them."""
        return await topics.delete(self._asker(), names)

    async def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False
    ) -> Answers[str, None]:
        """Raise topics to a number of partitions: all of them together, not the new ones (KIP-195)."""
        return await topics.create_partitions(self._asker(), totals, validate_only=validate_only)

    async def list_topics(self, *, internal: bool = False) -> Mapping[str, TopicInfo]:
        """All topics by name, with partitions, leaders and replicas; internal ones on request."""
        return await topics.list_all(self._asker(), internal=internal)

    async def describe_topics(self, names: Iterable[str]) -> Answers[str, TopicInfo]:
        """Partitions, leaders and replicas of topics; a topic that is none fails with UnknownTopic."""
        return await topics.describe(self._asker(), names)

    async def list_offsets(
        self, times_ms: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> Answers[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of a time (in ms) or later, by partition; None where none is that late.

        In place of a time: topics.EARLIEST, LATEST (the end; of committed records with `read_committed`) or
        MAX_TIMESTAMP.
        """
        return await topics.list_offsets(self._asker(), times_ms, read_committed=read_committed)

    async def delete_records(
        self, before: Mapping[TopicPartition, int | None]
    ) -> Answers[TopicPartition, int]:
        """Delete what is before an offset (None: before the high watermark). Returns: what stays first."""
        return await topics.delete_records(self._asker(), before)

    # ------------------------------------------------------------------------ settings

    async def describe_configs(
        self, resources: Iterable[ConfigResource], names: Sequence[str] | None = None
    ) -> Answers[ConfigResource, Mapping[str, ConfigValue]]:
        """Settings in force, by name; all of them without `names`."""
        return await configs.describe(self._asker(), resources, names)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> Answers[ConfigResource, None]:
        """Set single settings and leave the others alone; None takes a setting back (KIP-339)."""
        return await configs.alter(self._asker(), changes, validate_only=validate_only)

    # -------------------------------------------------------------------------- groups

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Answers[int, tuple[ListedGroup, ...]]:
        """Groups by the broker that coordinates them; filters need KIP-518 and KIP-848 there."""
        return await groups.list_all(self._asker(), states=states, types=types)

    async def describe_groups(self, group_ids: Iterable[str]) -> Answers[str, GroupDescription]:
        """State and members of groups, of either protocol. Nobody knows it: GROUP_ID_NOT_FOUND."""
        return await groups.describe(self._asker(), group_ids)

    async def delete_groups(self, group_ids: Iterable[str]) -> Answers[str, None]:
        """Delete groups without members, and their offsets (KIP-229)."""
        return await groups.delete(self._asker(), group_ids)

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """What a group has committed; `require_stable` waits for open transactions with offsets (KIP-447)."""
        return await groups.offsets(self._asker(), group_id, require_stable=require_stable)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Answers[TopicPartition, None]:
        """Commit offsets for a group without members; one that has some answers UNKNOWN_MEMBER_ID."""
        return await groups.alter_offsets(self._asker(), group_id, offsets)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Answers[TopicPartition, None]:
        """Forget offsets of partitions that the group does not read at the moment (KIP-496)."""
        return await groups.delete_offsets(self._asker(), group_id, partitions)

    # -------------------------------------------------------------------------- rights

    async def describe_acls(self, wanted: AclFilter) -> tuple[Acl, ...]:
        """The rules that a filter matches. Raises: BrokerRefused (54) where there is no authorizer."""
        return await acls.describe(self._asker(), wanted)

    async def create_acls(self, rules: Iterable[Acl]) -> Answers[Acl, None]:
        """Add rules, each on its own; one that is there already stays."""
        return await acls.create(self._asker(), rules)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> Answers[AclFilter, tuple[Acl, ...]]:
        """Delete every rule that a filter matches.

        Returns:
            Those, by filter; a filter fails with PartlyDeleted when only some of its rules were. What an
            attempt deleted whose answer was lost is in neither.
        """
        return await acls.delete(self._asker(), filters)

    # --------------------------------------------------------------------- the cluster

    async def describe_cluster(self) -> ClusterDescription:
        """Its id, its brokers and who is controller, as one broker knows it."""
        return await cluster_view.describe(self._asker())

    async def describe_features(self) -> Mapping[str, int]:
        """Finalized levels by name, such as `transaction.version` (KIP-584)."""
        return await cluster_view.features(self._asker())

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set finalized levels, all or none. Level 0 takes a feature back.

        Args:
            downgrade, unsafe: may a level go down, and even if something is lost (KIP-778).
        """
        await cluster_view.update_features(
            self._asker(), levels, downgrade=downgrade, unsafe=unsafe, validate_only=validate_only
        )
