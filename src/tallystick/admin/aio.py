"""Administration client for asyncio, on the caller's event loop."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tallystick.admin import acls, cluster_view, configs, groups, scram, topics
from tallystick.admin.acls import Acl, AclFilter
from tallystick.admin.admin_call import Answers
from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.configs import ConfigResource, ConfigValue
from tallystick.admin.model import (
    GroupDescription,
    GroupListing,
    GroupOffsets,
    ProducerState,
    TransactionDescription,
    TransactionListing,
)
from tallystick.admin.runner_async import AsyncAdminRunner
from tallystick.admin.scram import ScramCredentialInfo, UserScramCredentialAlteration
from tallystick.admin.topics import CreatedTopic, NewTopic
from tallystick.admin.txn.transactions import (
    DEFAULT_LIMIT_MS,
    AbortPlan,
    AbortSpec,
    HangingReport,
    OpenTransactionsReport,
    TransactionAdmin,
)
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.net.network import CLOSE_TIMEOUT_S
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition


class Admin:
    """Administration client of one cluster.

        async with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
            report = await admin.find_hanging_transactions(topic="orders")

    Belongs to the event loop it is first used on. Every call ends within `default.api.timeout.ms` [CLI-2]. A
    call that asks several brokers returns both the answers and the failures: see Answers [ADM-2].
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Parse the configuration.

        Raises: BadConfig with every problem at once.
        """
        self._runner = AsyncAdminRunner(config)
        self.config = self._runner.config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every connection; a second call does nothing."""
        await self._runner.close(timeout_s)

    def metrics(self) -> dict[str, float]:
        """Return the network metrics, under Kafka's names."""
        return self._runner.metrics()

    # ---------------------------------------------------------------------- transactions

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        coordinators: Sequence[int] | None = None,
    ) -> Answers[int, tuple[TransactionListing, ...]]:
        """List transactional ids, by the broker that coordinates them.

        Source: KIP-664, KIP-994 (duration), KIP-1152 (pattern of whole ids, RE2's dialect).

        Args:
            longer_than_ms: only transactions open for longer; selects open states only, unless `states` are
                given.
            coordinators: broker ids; all brokers if None.

        Raises:
            NotSupported: a broker id that the cluster does not list.
            Unreachable, TimedOut: no broker answers.
        """
        return await self._runner.run_on_transactions(
            "list_transactions",
            TransactionAdmin.list,
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=transactional_id_pattern,
            coordinators=coordinators,
        )

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, history: bool = False
    ) -> Answers[str, TransactionDescription]:
        """Describe transactional ids from their coordinators; an unknown id fails with IdExpired.

        Args:
            history: what has happened to them, too. Apache Kafka has none; clients are named to principals
                with DESCRIBE on the cluster.
        """
        return await self._runner.run_on_transactions(
            "describe_transactions", TransactionAdmin.describe, transactional_ids, history=history
        )

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the producers of partitions, as the leaders or the replicas on `broker` see them."""
        return await self._runner.run_on_transactions(
            "describe_producers", TransactionAdmin.describe_producers, partitions, broker
        )

    async def find_hanging_transactions(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> HangingReport:
        """Find transactions open for longer than `limit_ms`, and judge whether anything will end them.

        Source: KIP-664 "Finding Hanging Transactions"; `admin.txn.hanging` gives the grounds of each verdict.

        Args: topic, partition, broker: where to look; the whole cluster without them.

        Raises: UnknownTopic, Unreachable, TimedOut. The report has failures of single brokers and partitions.
        """
        return await self._runner.run_on_transactions(
            "find_hanging_transactions",
            TransactionAdmin.find_hanging,
            topic=topic,
            partition=partition,
            broker=broker,
            limit_ms=limit_ms,
        )

    async def describe_open_transactions(self, *, limit_ms: int = DEFAULT_LIMIT_MS) -> OpenTransactionsReport:
        """Judge every open transaction of the cluster, and describe every id in an open state.

        One snapshot, with the verdicts of `find_hanging_transactions`; what hangs was looked at twice.

        Args:
            limit_ms: an open transaction with a timeout is SLOW after this; choose no cases by it.

        Raises: Unreachable, TimedOut. Failures of single brokers or partitions are in the report.
        """
        return await self._runner.run_on_transactions(
            "describe_open_transactions", TransactionAdmin.describe_open, limit_ms=limit_ms
        )

    async def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """Find the transaction an abort would end, and what that would break. Changes nothing.

        Raises: NothingOpen, UnknownTopic, NotAuthorized.
        """
        return await self._runner.run_on_transactions("plan_abort", TransactionAdmin.plan_abort, spec)

    async def abort_transaction(self, what: AbortSpec | AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker into one partition, for exactly that transaction [ADM-3].

        Returns: False when an answer was lost and the transaction was found ended afterwards.

        Raises: NotSafe without `force` unless it hangs; NothingOpen; the broker's refusal.
        """
        return await self._runner.run_on_transactions(
            "abort_transaction", TransactionAdmin.plan_and_abort, what, force=force
        )

    async def force_terminate_transaction(
        self, transactional_id: str, *, force: bool = False
    ) -> ProducerIdAndEpoch:
        """Abort the open transaction of an id and fence its producer (KIP-939).

        Returns: the id's new producer id and epoch.

        Raises: NotSafe without `force` for a two-phase commit transaction; IdExpired for an unknown id.
        """
        return await self._runner.run_on_transactions(
            "force_terminate_transaction", TransactionAdmin.force_terminate, transactional_id, force=force
        )

    # -------------------------------------------------------------------------- topics

    async def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Answers[str, CreatedTopic]:
        """Create topics.

        A topic that was created by an attempt whose answer was lost fails with TOPIC_ALREADY_EXISTS and an
        unknown effect.
        """
        return await self._runner.run("create_topics", topics.create, new_topics, validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> Answers[str, None]:
        """Delete topics and their records."""
        return await self._runner.run("delete_topics", topics.delete, names)

    async def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False
    ) -> Answers[str, None]:
        """Grow topics to a total number of partitions, not by a number of new ones (KIP-195)."""
        return await self._runner.run(
            "create_partitions", topics.create_partitions, totals, validate_only=validate_only
        )

    async def list_topics(self, *, internal: bool = False) -> Mapping[str, TopicInfo]:
        """List all topics by name, with partitions, leaders and replicas; internal topics on request."""
        return await self._runner.run("list_topics", topics.list_all, internal=internal)

    async def describe_topics(self, names: Iterable[str]) -> Answers[str, TopicInfo]:
        """Describe the partitions, leaders and replicas of topics; an unknown one fails with UnknownTopic."""
        return await self._runner.run("describe_topics", topics.describe, names)

    async def list_offsets(
        self, times_ms: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> Answers[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record at or after a time (in ms), by partition; None if there is none.

        Instead of a time: topics.EARLIEST, LATEST (the end; of committed records with `read_committed`) or
        MAX_TIMESTAMP.
        """
        return await self._runner.run(
            "list_offsets", topics.list_offsets, times_ms, read_committed=read_committed
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int | None]
    ) -> Answers[TopicPartition, int]:
        """Delete the records before an offset (None: before the high watermark).

        Returns: the new first offset.
        """
        return await self._runner.run("delete_records", topics.delete_records, before)

    # ------------------------------------------------------------------------ settings

    async def describe_configs(
        self, resources: Iterable[ConfigResource], names: Sequence[str] | None = None
    ) -> Answers[ConfigResource, Mapping[str, ConfigValue]]:
        """Return the settings in force, by name; all of them without `names`."""
        return await self._runner.run("describe_configs", configs.describe, resources, names)

    async def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> Answers[ConfigResource, None]:
        """Set single settings and leave the others unchanged; None resets a setting (KIP-339)."""
        return await self._runner.run("alter_configs", configs.alter, changes, validate_only=validate_only)

    # -------------------------------------------------------------------------- groups

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Answers[int, tuple[GroupListing, ...]]:
        """List groups, by the broker that coordinates them; filters need brokers with KIP-518 and KIP-848."""
        return await self._runner.run("list_groups", groups.list_all, states=states, types=types)

    async def describe_groups(self, group_ids: Iterable[str]) -> Answers[str, GroupDescription]:
        """Describe state and members of groups of either protocol; an unknown group: GROUP_ID_NOT_FOUND."""
        return await self._runner.run("describe_groups", groups.describe, group_ids)

    async def delete_groups(self, group_ids: Iterable[str]) -> Answers[str, None]:
        """Delete groups without members, and their offsets (KIP-229)."""
        return await self._runner.run("delete_groups", groups.delete, group_ids)

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets; `require_stable` waits for pending transactions (KIP-447)."""
        return await self._runner.run(
            "list_group_offsets", groups.list_offsets, group_id, require_stable=require_stable
        )

    async def describe_group_offsets(self, group_ids: Iterable[str]) -> Answers[str, GroupOffsets]:
        """Return the committed offsets of many groups, and the partitions that wait for a transaction.

        It does not wait for them as `list_group_offsets` does (KIP-447).
        """
        return await self._runner.run("describe_group_offsets", groups.describe_offsets, group_ids)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Answers[TopicPartition, None]:
        """Commit offsets for a group without members; a group that has some answers UNKNOWN_MEMBER_ID."""
        return await self._runner.run("alter_group_offsets", groups.alter_offsets, group_id, offsets)

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Answers[TopicPartition, None]:
        """Delete offsets of partitions that the group is not subscribed to at the moment (KIP-496)."""
        return await self._runner.run("delete_group_offsets", groups.delete_offsets, group_id, partitions)

    # -------------------------------------------------------------------------- rights

    async def describe_acls(self, wanted: AclFilter) -> tuple[Acl, ...]:
        """Return the rules that a filter matches.

        Raises: BrokerRefused (54) where there is no authorizer.
        """
        return await self._runner.run("describe_acls", acls.describe, wanted)

    async def create_acls(self, rules: Iterable[Acl]) -> Answers[Acl, None]:
        """Add rules, each on its own; a rule that exists already stays."""
        return await self._runner.run("create_acls", acls.create, rules)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> Answers[AclFilter, tuple[Acl, ...]]:
        """Delete every rule that a filter matches.

        Returns:
            The deleted rules, by filter; a filter fails with PartlyDeleted when only some of its rules were
            deleted. Rules deleted by an attempt whose answer was lost are in neither.
        """
        return await self._runner.run("delete_acls", acls.delete, filters)

    async def describe_user_scram_credentials(
        self, users: Iterable[str] = ()
    ) -> Answers[str, tuple[ScramCredentialInfo, ...]]:
        """Return the SCRAM credentials of users, by name; of all if none is named (KIP-554)."""
        return await self._runner.run("describe_user_scram_credentials", scram.describe, users)

    async def alter_user_scram_credentials(
        self, alterations: Iterable[UserScramCredentialAlteration]
    ) -> Answers[str, None]:
        """Set and remove SCRAM credentials, each user's on its own (KIP-554).

        Raises: BadConfig, for a mechanism that is not SCRAM's; nothing is sent then.
        """
        return await self._runner.run("alter_user_scram_credentials", scram.alter, alterations)

    # --------------------------------------------------------------------- the cluster

    async def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster as one broker knows it: its id, its brokers and the controller."""
        return await self._runner.run(
            "describe_cluster",
            cluster_view.describe,
        )

    async def describe_features(self) -> Mapping[str, int]:
        """Return the finalized feature levels by name, such as `transaction.version` (KIP-584)."""
        return await self._runner.run(
            "describe_features",
            cluster_view.describe_features,
        )

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set finalized levels, all or none. Level 0 removes a feature.

        Args:
            downgrade: allow a level to go down.
            unsafe: allow it even if metadata is lost (KIP-778).
        """
        await self._runner.run(
            "update_features",
            cluster_view.update_features,
            levels,
            downgrade=downgrade,
            unsafe=unsafe,
            validate_only=validate_only,
        )
