"""Blocking administration client: `admin.aio.Admin` on the engine thread, with the same names.

A forked child has no engine thread; an Admin opened before the fork refuses every call there [CLI-61].
"""

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from tallystick.admin import aio
from tallystick.admin.acls import Acl, AclFilter
from tallystick.admin.admin_call import Answers
from tallystick.admin.cluster_view import ClusterDescription
from tallystick.admin.configs import ConfigResource, ConfigValue
from tallystick.admin.groups import GroupDescription, GroupListing
from tallystick.admin.model import ProducerState, TransactionDescription, TransactionListing
from tallystick.admin.topics import CreatedTopic, NewTopic
from tallystick.admin.transactions import DEFAULT_LIMIT_MS, AbortPlan, AbortSpec, HangingReport
from tallystick.client.blocking.thread import engine_thread
from tallystick.client.config import AdminConfig
from tallystick.client.net.metadata import TopicInfo
from tallystick.client.net.network import CLOSE_TIMEOUT_S
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.kernel.ids import ProducerIdAndEpoch, TopicPartition

T = TypeVar("T")

# Calls end by their own limits, whose errors say more; an abort has one limit to plan and one to write.
_TIMEOUT_FACTOR: Final = 3


class Admin:
    """Administration client of one cluster.

        with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
            report = admin.find_hanging_transactions(topic="orders")

    Safe to share between threads. Every call ends within `default.api.timeout.ms` [CLI-2]; `admin.aio`
    documents what the methods take, return and raise.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        """Parse the configuration.

        Raises: BadConfig with every problem at once.
        """
        self.config = AdminConfig.parse(config)
        self._thread = engine_thread()
        self._async_admin = self._thread.call(lambda: aio.Admin(config), "Admin()")
        self._is_closed = False
        self._thread.register(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close every connection, within `timeout_s`; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._thread.unregister(self)
        if not self._thread.is_forked:
            self._thread.run(self._async_admin.close(timeout_s), timeout_s + CLOSE_TIMEOUT_S, "close()")

    def mark_forked(self) -> None:
        """Do nothing in a forked child: the engine thread refuses every request there."""

    def metrics(self) -> dict[str, float]:
        """Return the network metrics, under Kafka's names."""
        return self._thread.call(self._async_admin.metrics, "metrics()")

    def _run(self, call: Coroutine[object, object, T], doing: str) -> T:
        limit_s = self.config.default_api_timeout_ms / 1000
        return self._thread.run(call, _TIMEOUT_FACTOR * limit_s + CLOSE_TIMEOUT_S, f"{doing}()")

    # ---------------------------------------------------------------------- transactions

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        transactional_id_pattern: str | None = None,
        coordinators: Sequence[int] | None = None,
    ) -> Answers[int, tuple[TransactionListing, ...]]:
        """List transactional ids, by the broker that coordinates them."""
        call = self._async_admin.list_transactions(
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            transactional_id_pattern=transactional_id_pattern,
            coordinators=coordinators,
        )
        return self._run(call, "list_transactions")

    def describe_transactions(self, transactional_ids: Iterable[str]) -> Answers[str, TransactionDescription]:
        """Describe transactional ids from their coordinators; an unknown id fails with IdExpired."""
        return self._run(self._async_admin.describe_transactions(transactional_ids), "describe_transactions")

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, broker: int | None = None
    ) -> Answers[TopicPartition, tuple[ProducerState, ...]]:
        """Describe the producers of partitions, as the leaders or the replicas on `broker` see them."""
        return self._run(
            self._async_admin.describe_producers(partitions, broker=broker), "describe_producers"
        )

    def find_hanging_transactions(
        self,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker: int | None = None,
        limit_ms: int = DEFAULT_LIMIT_MS,
    ) -> HangingReport:
        """Find transactions open for longer than `limit_ms`, and judge whether anything will end them."""
        call = self._async_admin.find_hanging_transactions(
            topic=topic, partition=partition, broker=broker, limit_ms=limit_ms
        )
        return self._run(call, "find_hanging_transactions")

    def plan_abort(self, spec: AbortSpec) -> AbortPlan:
        """Find the transaction an abort would end, and what that would break. Changes nothing."""
        return self._run(self._async_admin.plan_abort(spec), "plan_abort")

    def abort_transaction(self, what: AbortSpec | AbortPlan, *, force: bool = False) -> bool:
        """Write an ABORT marker into one partition, for exactly that transaction [ADM-3]."""
        return self._run(self._async_admin.abort_transaction(what, force=force), "abort_transaction")

    def force_terminate_transaction(
        self, transactional_id: str, *, force: bool = False
    ) -> ProducerIdAndEpoch:
        """Abort the open transaction of an id and fence its producer (KIP-939).

        Returns: the id's new producer id and epoch.
        """
        call = self._async_admin.force_terminate_transaction(transactional_id, force=force)
        return self._run(call, "force_terminate_transaction")

    # -------------------------------------------------------------------------- topics

    def create_topics(
        self, new_topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> Answers[str, CreatedTopic]:
        """Create topics.

        A topic that was created by an attempt whose answer was lost fails with TOPIC_ALREADY_EXISTS and an
        unknown effect.
        """
        return self._run(
            self._async_admin.create_topics(new_topics, validate_only=validate_only), "create_topics"
        )

    def delete_topics(self, names: Iterable[str]) -> Answers[str, None]:
        """Delete topics and their records."""
        return self._run(self._async_admin.delete_topics(names), "delete_topics")

    def create_partitions(
        self, totals: Mapping[str, int], *, validate_only: bool = False
    ) -> Answers[str, None]:
        """Grow topics to a total number of partitions, not by a number of new ones (KIP-195)."""
        return self._run(
            self._async_admin.create_partitions(totals, validate_only=validate_only), "create_partitions"
        )

    def list_topics(self, *, internal: bool = False) -> Mapping[str, TopicInfo]:
        """List all topics by name, with partitions, leaders and replicas; internal topics on request."""
        return self._run(self._async_admin.list_topics(internal=internal), "list_topics")

    def describe_topics(self, names: Iterable[str]) -> Answers[str, TopicInfo]:
        """Describe the partitions, leaders and replicas of topics; an unknown one fails with UnknownTopic."""
        return self._run(self._async_admin.describe_topics(names), "describe_topics")

    def list_offsets(
        self, times_ms: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> Answers[TopicPartition, OffsetAndTimestamp | None]:
        """Look up the first record at or after a time (in ms), by partition; None if there is none.

        Instead of a time: topics.EARLIEST, LATEST (the end; of committed records with `read_committed`) or
        MAX_TIMESTAMP.
        """
        return self._run(
            self._async_admin.list_offsets(times_ms, read_committed=read_committed), "list_offsets"
        )

    def delete_records(self, before: Mapping[TopicPartition, int | None]) -> Answers[TopicPartition, int]:
        """Delete the records before an offset (None: before the high watermark).

        Returns: the new first offset.
        """
        return self._run(self._async_admin.delete_records(before), "delete_records")

    # ------------------------------------------------------------------------ settings

    def describe_configs(
        self, resources: Iterable[ConfigResource], names: Sequence[str] | None = None
    ) -> Answers[ConfigResource, Mapping[str, ConfigValue]]:
        """Return the settings in force, by name; all of them without `names`."""
        return self._run(self._async_admin.describe_configs(resources, names), "describe_configs")

    def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> Answers[ConfigResource, None]:
        """Set single settings and leave the others unchanged; None resets a setting (KIP-339)."""
        return self._run(
            self._async_admin.alter_configs(changes, validate_only=validate_only), "alter_configs"
        )

    # -------------------------------------------------------------------------- groups

    def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Answers[int, tuple[GroupListing, ...]]:
        """List groups, by the broker that coordinates them; filters need brokers with KIP-518 and KIP-848."""
        return self._run(self._async_admin.list_groups(states=states, types=types), "list_groups")

    def describe_groups(self, group_ids: Iterable[str]) -> Answers[str, GroupDescription]:
        """Describe state and members of groups of either protocol; an unknown group: GROUP_ID_NOT_FOUND."""
        return self._run(self._async_admin.describe_groups(group_ids), "describe_groups")

    def delete_groups(self, group_ids: Iterable[str]) -> Answers[str, None]:
        """Delete groups without members, and their offsets (KIP-229)."""
        return self._run(self._async_admin.delete_groups(group_ids), "delete_groups")

    def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets; `require_stable` waits for pending transactions (KIP-447)."""
        return self._run(
            self._async_admin.list_group_offsets(group_id, require_stable=require_stable),
            "list_group_offsets",
        )

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Answers[TopicPartition, None]:
        """Commit offsets for a group without members; a group that has some answers UNKNOWN_MEMBER_ID."""
        return self._run(self._async_admin.alter_group_offsets(group_id, offsets), "alter_group_offsets")

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> Answers[TopicPartition, None]:
        """Delete offsets of partitions that the group is not subscribed to at the moment (KIP-496)."""
        return self._run(self._async_admin.delete_group_offsets(group_id, partitions), "delete_group_offsets")

    # -------------------------------------------------------------------------- rights

    def describe_acls(self, wanted: AclFilter) -> tuple[Acl, ...]:
        """Return the rules that a filter matches."""
        return self._run(self._async_admin.describe_acls(wanted), "describe_acls")

    def create_acls(self, rules: Iterable[Acl]) -> Answers[Acl, None]:
        """Add rules, each on its own."""
        return self._run(self._async_admin.create_acls(rules), "create_acls")

    def delete_acls(self, filters: Iterable[AclFilter]) -> Answers[AclFilter, tuple[Acl, ...]]:
        """Delete every rule that a filter matches."""
        return self._run(self._async_admin.delete_acls(filters), "delete_acls")

    # --------------------------------------------------------------------- the cluster

    def describe_cluster(self) -> ClusterDescription:
        """Describe the cluster as one broker knows it: its id, its brokers and the controller."""
        return self._run(self._async_admin.describe_cluster(), "describe_cluster")

    def describe_features(self) -> Mapping[str, int]:
        """Return the finalized feature levels by name, such as `transaction.version` (KIP-584)."""
        return self._run(self._async_admin.describe_features(), "describe_features")

    def update_features(
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
        self._run(
            self._async_admin.update_features(
                levels, downgrade=downgrade, unsafe=unsafe, validate_only=validate_only
            ),
            "update_features",
        )
