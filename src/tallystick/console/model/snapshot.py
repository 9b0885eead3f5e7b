"""Readings of the collector, as values. Pure.

A snapshot is never changed: the collector replaces it by the next one, and every page, stream and scrape
that is answered meanwhile reads the same one. Each part carries the time at which it was read, because the
parts are read one after the other and some less often, and a failure to read it, because a page that shows
half a picture must say which half is missing.

Times are milliseconds since the Unix epoch by this process's clock, unless a field says otherwise.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tallystick.admin.model import GroupDescription, TransactionDescription
from tallystick.admin.txn.hanging import HangingCase
from tallystick.client.net.metadata import Node
from tallystick.dualwrite.rules.leases import LeaseRow
from tallystick.dualwrite.rules.model import StoredState
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.limits import MIB
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import Decision, DecisionNote

FULL_BYTES_MAX: Final = 32 * MIB
"""A disk with less than this is full: tallystick's broker reserves 16 MiB for what must be written."""

FULL_BYTES_MIN: Final = MIB
FULL_DIVISOR: Final = 20
"""On a small disk a twentieth of it is full, but not less than FULL_BYTES_MIN."""

NEVER_MS = 0
"""Time of a part that has not been read yet."""


class PartStatus(Value, kw_only=True):
    """Times and failures of the reading of a part.

    read_ms   when the reading began that the part is from; NEVER_MS before the first one
    tried_ms  when the last attempt began; later than `read_ms` if it failed, and the part is an older one
    took_ms   how long the last attempt took; 0 if it ended an outage, whose end it had waited for
    away_since_ms  when the first of the attempts began that have read nothing since; NEVER_MS if the last one
                   has read it
    failures  one sentence each: what the last attempt could not read, and why
    was_answered  the last attempt has read nothing because an answer refused it
    """

    read_ms: int = NEVER_MS
    tried_ms: int = NEVER_MS
    took_ms: int = 0
    away_since_ms: int = NEVER_MS
    failures: tuple[str, ...] = ()
    was_answered: bool = False

    @property
    def is_away(self) -> bool:
        """Whether the last attempt has read nothing at all, or has not answered for long."""
        return self.away_since_ms != NEVER_MS

    @property
    def is_complete(self) -> bool:
        return self.read_ms != NEVER_MS and not self.failures


class Volume(Value, kw_only=True):
    """The disk below a directory of a broker, or below a database on this host.

    failure       why its broker cannot use it; "" if it can
    total_bytes   None if it is not told
    usable_bytes  what may still be written; None if it is not told
    is_read_only  its file system may not be written by any process
    topic_bytes   size of each topic of clients there; only told of a disk that is full
    """

    path: str
    failure: str = ""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    is_read_only: bool = False
    topic_bytes: Mapping[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether so little is left that writes fail, or are about to."""
        if self.usable_bytes is None or self.total_bytes is None:
            return False
        limit = max(FULL_BYTES_MIN, min(FULL_BYTES_MAX, self.total_bytes // FULL_DIVISOR))
        return self.usable_bytes < limit


class ClusterFacts(Value, kw_only=True):
    """The cluster: who answered, and what it can do.

    volumes  of each broker's directories, by its id; lacks brokers that do not tell this console's user
    """

    status: PartStatus = PartStatus()
    cluster_id: str | None = None
    controller: int | None = None
    brokers: tuple[Node, ...] = ()
    features: Mapping[str, int] = {}
    volumes: Mapping[int, tuple[Volume, ...]] = {}


class TransactionFacts(Value, kw_only=True):
    """All open transactions of the cluster, from both views [ADM-1].

    descriptions  what coordinators say, by transactional id: those in an open state, and those that a store
                  or a decision names
    unknown_ids   ids that were asked for and that no coordinator knows; any other id that is missing in
                  `descriptions` could not be described
    cases         views of partition leaders, assessed: one for each open transaction in each partition
    id_count      number of transactional ids that the coordinators know, in any state
    """

    status: PartStatus = PartStatus()
    descriptions: Mapping[str, TransactionDescription] = {}
    unknown_ids: frozenset[str] = frozenset()
    cases: tuple[HangingCase, ...] = ()
    id_count: int = 0


class PartitionOffsets(Value, kw_only=True):
    """The offsets of a partition. `last_stable` < `end`: an open transaction holds readers back."""

    start: int
    last_stable: int
    end: int

    @property
    def held_back_count(self) -> int:
        return self.end - self.last_stable


class TopicFacts(Value, kw_only=True):
    """Partitions and their offsets. `offsets` lacks a partition that has no leader or did not answer."""

    status: PartStatus = PartStatus()
    internal_topics: frozenset[str] = frozenset()
    partition_counts: Mapping[str, int] = {}
    offsets: Mapping[TopicPartition, PartitionOffsets] = {}


class GroupOffset(Value, kw_only=True):
    """A group's progress in one partition.

    committed         the next offset to read
    data_lag          data records between `committed` and the last stable offset that `read_committed`
                      readers will be given; None where they were not counted
    passed_markers    control records among the offsets in between
    passed_aborted    records of aborted transactions among them
    is_pending        offsets of a transaction that is not decided yet wait to replace `committed` (KIP-447)
    """

    committed: int
    data_lag: int | None
    passed_markers: int = 0
    passed_aborted: int = 0
    is_pending: bool = False


class GroupFacts(Value, kw_only=True):
    """Groups, and their offsets by group and partition."""

    status: PartStatus = PartStatus()
    groups: Mapping[str, GroupDescription] = {}
    offsets: Mapping[str, Mapping[TopicPartition, GroupOffset]] = {}


class PrefixFacts(Value, kw_only=True):
    """The last decision of one Spark prefix.

    source       where the decision is: a topic's name, or a store's
    is_complete  whether its driver has noted that every participant is committed
    note         the cluster's note of a decision in a store
    completed_nonce  the decision whose participants are all committed, as the cluster's notes say
    is_noted_only  there is nothing but that note: the store that has the decision is not read
    """

    prefix: str
    source: str
    decision: Decision | None
    is_complete: bool
    note: DecisionNote | None = None
    completed_nonce: str | None = None
    is_noted_only: bool = False


class StoreKind(Enum):
    """The kind of database behind a store; the value is what a page calls it."""

    SQL = "SQL"
    ROCKSDB = "RocksDB"
    ZOOKEEPER = "ZooKeeper"
    LAKE = "lake table"


class ServerPreparedTransaction(Value, kw_only=True):
    """A prepared transaction of the database server itself (pg_prepared_xacts, XA RECOVER)."""

    gid: str
    owner: str
    database: str
    prepared_ms: int | None  # by the server's clock; None where the server does not say


class StoreFacts(Value, kw_only=True):
    """The rows of one store.

    name        how pages call it: the URL without its password
    engine      the server and its version, as it says
    opened_by   for an embedded database: the process that has it open, if one is known; "" if none is
    rows        the state row of each transactional id
    leases      of transactional ids, if the store keeps them
    lease_now_ms  the database's clock when the leases were read
    prefixes    decisions of Spark's queries that are in this database
    volume      of an embedded database on this host
    refusal     why the server takes no writes from anyone; "" if it does, or does not tell
    """

    status: PartStatus = PartStatus()
    name: str
    kind: StoreKind
    engine: str = ""
    opened_by: str = ""
    rows: Mapping[str, StoredState] = {}
    leases: tuple[LeaseRow, ...] = ()
    lease_now_ms: int = 0
    server_prepared: tuple[ServerPreparedTransaction, ...] = ()
    prefixes: tuple[PrefixFacts, ...] = ()
    volume: Volume | None = None
    refusal: str = ""


class PipelineFacts(Value, kw_only=True):
    """The last decisions of all prefixes: those of the topics, whose status this is, and of all stores."""

    status: PartStatus = PartStatus()
    prefixes: tuple[PrefixFacts, ...] = ()


class Snapshot(Value, kw_only=True):
    """Everything that was seen, at `at_ms`. `number` grows by one with each snapshot."""

    number: int = 0
    at_ms: int = NEVER_MS
    bootstrap_servers: str = ""
    cluster: ClusterFacts = ClusterFacts()
    transactions: TransactionFacts = TransactionFacts()
    topics: TopicFacts = TopicFacts()
    groups: GroupFacts = GroupFacts()
    stores: tuple[StoreFacts, ...] = ()
    pipelines: PipelineFacts = PipelineFacts()

    def list_cluster_statuses(self) -> tuple[PartStatus, ...]:
        """Return the status of every part that the cluster answers for."""
        return (
            self.cluster.status,
            self.transactions.status,
            self.topics.status,
            self.groups.status,
            self.pipelines.status,
        )

    def list_statuses(self) -> tuple[PartStatus, ...]:
        """Return the status of every part."""
        return (*self.list_cluster_statuses(), *(store.status for store in self.stores))
