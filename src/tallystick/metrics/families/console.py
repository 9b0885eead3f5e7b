"""The metrics of a cluster as the console sees it: names, labels and texts. Pure.

`tallystick_cluster_…`, `…_group_…`, `…_store_…` and `…_pipeline_…` say what the newest snapshot shows, and
`tallystick_console_…` how old it is and what it lacks. Names of kafka_exporter are used for what its users
know by them, with its labels, so that a dashboard that was written for it works here.

Source: github.com/danielqsj/kafka_exporter, README "Consumer Groups", for `kafka_consumergroup_…`.
"""

from typing import Final

from tallystick.metrics.model import MetricFamily, MetricType, make_counter, make_gauge

_BY_PARTITION: Final = ("topic", "partition")
_BY_GROUP: Final = ("group",)
_BY_GROUP_PARTITION: Final = ("group", "topic", "partition")
_BY_STORE: Final = ("store",)
_BY_PREFIX: Final = ("prefix", "source")
_BY_PART: Final = ("part",)

# ---- transactions
TRANSACTIONS: Final = make_gauge(
    "cluster_transactions",
    "Transactions that are open or whose two sides differ, by health: the words of the console's pages.",
    ("health",),
)
TRANSACTIONS_BY_STATE: Final = make_gauge(
    "cluster_transactions_by_state", "The same, by the state that their coordinator shows.", ("state",)
)
OPEN_TRANSACTIONS: Final = make_gauge(
    "cluster_open_transactions",
    "Open transactions. in_doubt: of two-phase commit, which may be prepared and never time out. prepared: "
    "known to be, because a database or Spark has decided them.",
    ("kind",),
)
OLDEST_SECONDS: Final = make_gauge(
    "cluster_oldest_transaction_seconds",
    "Age of the oldest of these transactions; 0 if there is none.",
    ("kind",),
)
TRANSACTIONAL_IDS: Final = make_gauge(
    "cluster_transactional_ids", "Transactional ids that the coordinators know, in any state."
)
BROKERS: Final = make_gauge("cluster_brokers", "Brokers of the cluster.")

BROKER_DISK_BYTES: Final = make_gauge(
    "cluster_broker_disk_bytes",
    "Size of the volume of a broker's directory. Absent where the broker does not tell.",
    ("broker", "path"),
)
BROKER_DISK_FREE_BYTES: Final = make_gauge(
    "cluster_broker_disk_free_bytes", "What of it a broker may still write.", ("broker", "path")
)
REFUSING: Final = make_gauge(
    "cluster_refusing",
    "Brokers, and stores, that take no writes: their disk is full or has failed, or may only be read.",
    ("kind",),
)

# ---- partitions
HELD_BACK_RECORDS: Final = make_gauge(
    "cluster_held_back_records",
    "Records that no read_committed reader may see yet, markers included, in all partitions.",
)
HELD_BACK_PARTITIONS: Final = make_gauge(
    "cluster_held_back_partitions", "Partitions where an open transaction holds readers back."
)
HELD_BACK_SECONDS: Final = make_gauge(
    "cluster_held_back_seconds", "For how long the readers that wait longest have been held back; 0 if none."
)
PARTITION_HELD_BACK_RECORDS: Final = make_gauge(
    "cluster_partition_held_back_records",
    "End of a partition less its last stable offset, for partitions where they differ.",
    _BY_PARTITION,
)
PARTITION_HELD_BACK_SECONDS: Final = make_gauge(
    "cluster_partition_held_back_seconds",
    "Age of the transaction at the last stable offset of such a partition.",
    _BY_PARTITION,
)

# ---- groups
GROUP_MEMBERS: Final = make_gauge(
    "group_members", "Members of a group, with the group's state.", ("group", "state")
)
GROUP_LAG: Final = make_gauge(
    "group_lag_records",
    "Data records that read_committed members have still to be given, up to the last stable offset. Absent "
    "where they are not counted.",
    _BY_GROUP,
)
GROUP_OFFSET_LAG: Final = make_gauge(
    "group_lag_offsets",
    "Ends of partitions less committed offsets: markers, aborted records and what is held back included.",
    _BY_GROUP,
)
GROUP_HELD_BACK: Final = make_gauge(
    "group_held_back_records",
    "Records behind the last stable offset in the partitions of a group.",
    _BY_GROUP,
)
GROUP_PENDING: Final = make_gauge(
    "group_pending_partitions",
    "Partitions for which a transaction that is not decided yet has sent an offset.",
    _BY_GROUP,
)
GROUP_PARTITION_LAG: Final = make_gauge(
    "group_partition_lag_records", "The same as group_lag_records, of one partition.", _BY_GROUP_PARTITION
)
EXPORTER_LAG: Final = MetricFamily(
    name="kafka_consumergroup_lag",
    type=MetricType.GAUGE,
    help="Lag under the name of kafka_exporter: data records up to the last stable offset, or where they are "
    "not counted the offsets up to it.",
    labels=("consumergroup", "topic", "partition"),
)
EXPORTER_LAG_SUM: Final = MetricFamily(
    name="kafka_consumergroup_lag_sum",
    type=MetricType.GAUGE,
    help="The sum of kafka_consumergroup_lag over the partitions of a topic.",
    labels=("consumergroup", "topic"),
)
EXPORTER_OFFSET: Final = MetricFamily(
    name="kafka_consumergroup_current_offset",
    type=MetricType.GAUGE,
    help="Committed offset, under the name of kafka_exporter.",
    labels=("consumergroup", "topic", "partition"),
)
EXPORTER_MEMBERS: Final = MetricFamily(
    name="kafka_consumergroup_members",
    type=MetricType.GAUGE,
    help="Members of a group, under the name of kafka_exporter.",
    labels=("consumergroup",),
)

# ---- stores
STORE_REACHABLE: Final = make_gauge(
    "store_reachable", "1 if the last attempt to read a store has read all of it.", _BY_STORE
)
STORE_UNDECIDED: Final = make_gauge(
    "store_undecided_transactions", "Open transactions that the store has not committed so far.", _BY_STORE
)
STORE_DECIDED: Final = make_gauge(
    "store_decided_transactions",
    "Open transactions that the store has committed and Kafka has not yet.",
    _BY_STORE,
)
STORE_OLDEST_SECONDS: Final = make_gauge(
    "store_oldest_transaction_seconds",
    "Age of the oldest open transaction that the store decides; 0 if there is none.",
    _BY_STORE,
)
STORE_IDS: Final = make_gauge(
    "store_transactional_ids", "Transactional ids with a row in the store.", _BY_STORE
)
STORE_EXPIRED_LEASES: Final = make_gauge(
    "store_expired_leases", "Leases of transactional ids whose holder has not renewed them.", _BY_STORE
)
STORE_PREPARED: Final = make_gauge(
    "store_prepared_transactions",
    "Prepared transactions of the database server itself (pg_prepared_xacts, XA RECOVER).",
    _BY_STORE,
)

# ---- decisions of Spark
PIPELINE_UNFINISHED: Final = make_gauge(
    "pipeline_unfinished_decision",
    "1 while the last decision of a prefix is not known to be committed in all its transactions.",
    _BY_PREFIX,
)
PIPELINE_PARTICIPANTS: Final = make_gauge(
    "pipeline_participants", "Transactions of the last decision of a prefix.", _BY_PREFIX
)
PIPELINE_BATCH: Final = make_gauge(
    "pipeline_batch", "Number of the last decided batch of the prefix's query.", _BY_PREFIX
)
PIPELINE_DECISION_SECONDS: Final = make_gauge(
    "pipeline_decision_age_seconds",
    "Time since the last decision of a prefix, by the clock of the driver that made it.",
    _BY_PREFIX,
)

# ---- the console itself
INFO: Final = make_gauge(
    "console_info", "1, with the console's version and the cluster that it reads.", ("version", "cluster_id")
)
SNAPSHOTS: Final = make_counter("console_snapshots", "Snapshots that the console has taken since its start.")
SNAPSHOT_AGE: Final = make_gauge(
    "console_snapshot_age_seconds", "Age of the newest snapshot; +Inf before the first one."
)
PART_AGE: Final = make_gauge(
    "console_part_age_seconds",
    "Time since a part of the snapshot was last read; +Inf if it never was.",
    _BY_PART,
)
PART_FAILURES: Final = make_gauge(
    "console_part_failures", "What the last attempt to read a part could not read.", _BY_PART
)
PART_READING: Final = make_gauge(
    "console_part_reading_seconds", "How long the last attempt to read a part took.", _BY_PART
)
LEFT_OUT: Final = make_gauge(
    "console_left_out", "Partitions, groups or prefixes that this answer has no series of.", ("kind",)
)
