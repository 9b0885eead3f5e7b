"""The metrics of a broker.

Source: KIP-664 "Metrics", KIP-939 "Metric Changes"; Kafka 4.3: ReplicaManager, Partition.
"""

from typing import Final

from tallystick.metrics.model import make_counter, make_gauge, make_kafka_metric

_REPLICAS: Final = "kafka.server:type=ReplicaManager,name="
_STATES: Final = "kafka.coordinator.transaction:type=TransactionStateManager,name="
_PARTITION: Final = "kafka.cluster:type=Partition,name="
_BY_PARTITION: Final = ("topic", "partition")

# ---- partitions
PARTITIONS: Final = make_kafka_metric(f"{_REPLICAS}PartitionCount", "Partitions, internal topics included.")
PRODUCER_IDS: Final = make_kafka_metric(
    f"{_REPLICAS}ProducerIdCount",
    "Producer ids known in partitions, counted in each, until producer.id.expiration.ms.",
)
LSO_LAG: Final = make_kafka_metric(
    f"{_PARTITION}LastStableOffsetLag",
    "Offsets that read_committed clients cannot see yet: high watermark minus last stable offset.",
    _BY_PARTITION,
)
OPEN_DURATION: Final = make_kafka_metric(
    f"{_PARTITION}MaxActiveTransactionDuration",
    "Age in ms of the oldest transaction open in a partition (KIP-664); of a hanging one, since its first "
    "batch that is remembered.",
    _BY_PARTITION,
)
LSO_LAG_MAX: Final = make_kafka_metric(
    f"{_REPLICAS}MaxLastStableOffsetLag", "The greatest LastStableOffsetLag of any partition (KIP-664)."
)
LATE: Final = make_kafka_metric(
    f"{_REPLICAS}PartitionsWithLateTransactionsCount",
    "Partitions where a transaction is open that was last written to more than transaction.max.timeout.ms "
    "and 5 minutes ago, without those of two-phase commit.",
)
LATE_TWO_PHASE: Final = make_gauge(
    "partitions_with_late_two_phase_transactions",
    "Partitions with a transaction as late, that has no timeout: only its client, or force, ends it.",
)
HANGING: Final = make_gauge(
    "hanging_transactions",
    "Transactions open in a partition that the coordinator does not have there: nothing will ever end them. "
    "Absent while the coordinator loads its log.",
)
HELD_BACK: Final = make_gauge(
    "retention_held_back_bytes",
    "What retention would have deleted but for open transactions, in whole segments.",
)
HELD_BACK_PARTITIONS: Final = make_gauge(
    "retention_held_back_partitions", "Partitions where an open transaction holds retention back."
)

# ---- coordinator
OPEN_TIME_MAX: Final = make_kafka_metric(
    f"{_STATES}ActiveTransactionOpenTimeMaxMs",
    "Age in ms of the oldest open transaction, two-phase ones included (KIP-939).",
)
TRANSACTIONAL_IDS: Final = make_gauge(
    "transactional_ids",
    "Transactional ids by state; thousands in Empty are of a client with a new id at each start.",
    ("state",),
)
IN_DOUBT: Final = make_gauge(
    "in_doubt_transactions",
    "Open transactions of two-phase commit; the broker cannot tell which of them are prepared.",
)
IN_DOUBT_OPEN_TIME_MAX: Final = make_gauge(
    "in_doubt_transaction_open_time_max_ms", "Age in ms of the oldest open transaction of two-phase commit."
)
OLDEST_IN_DOUBT: Final = make_gauge(
    "oldest_in_doubt_seconds",
    "Age in seconds of the oldest open transaction of two-phase commit; 0 if there is none.",
)
KEPT: Final = make_gauge(
    "kept_transactions",
    "Open transactions whose client restarted, asked to keep them, and has yet to decide.",
)
UNMARKED_TIME_MAX: Final = make_gauge(
    "decided_transaction_time_max_ms",
    "Time in ms since the oldest decision that has not reached every partition yet.",
)
OFFLINE: Final = make_gauge(
    "transaction_log_offline_partitions",
    "Partitions of __transaction_state whose last append may or may not be there, until they are read back.",
)
OFFSETS_OFFLINE: Final = make_gauge(
    "offsets_log_offline_partitions",
    "Partitions of __consumer_offsets whose last append may or may not be there, until they are read back.",
)

# ---- the last start after an unclean shutdown
HANGING_AT_START: Final = make_gauge(
    "start_hanging_transactions", "Hanging transactions that the comparison at the last start has listed."
)
LOST_AT_START: Final = make_gauge(
    "start_lost_offsets",
    "Offsets gone from below acknowledged commits, found by the comparison at the last start.",
)

# ---- disk
RESERVE: Final = make_gauge(
    "reserve_bytes", "Disk space held for markers and internal topics (log.reserve.bytes)."
)
RESERVE_MISSING: Final = make_gauge(
    "reserve_missing_bytes", "What the reserve lacks; while it lacks any, data is refused."
)

# ---- topics
TOPICS_TO_DELETE: Final = make_kafka_metric(
    "kafka.controller:type=KafkaController,name=TopicsToDeleteCount",
    "Topics that are deleted and whose names are not free yet: their directories cannot be given up.",
)

# ---- TLS, by listener
_BY_LISTENER: Final = ("listener",)
TLS_RELOAD_FAILED: Final = make_gauge(
    "tls_reload_failed",
    "1 while the changed files of a listener's keys cannot be used, and those before are in use.",
    _BY_LISTENER,
)
TLS_VALID_UNTIL: Final = make_gauge(
    "tls_certificate_valid_until_seconds",
    "When the certificate in use expires, in seconds since 1970.",
    _BY_LISTENER,
)
TLS_DAYS_LEFT: Final = make_gauge(
    "tls_certificate_days_left",
    "Days until the certificate in use expires; negative once it has.",
    _BY_LISTENER,
)
TLS_RELOADS: Final = make_counter("tls_reloads", "Changed keys that were taken into use.", _BY_LISTENER)
TLS_FAILED_HANDSHAKES: Final = make_counter(
    "tls_failed_handshakes", "Connections that ended in their handshake; the log has reasons.", _BY_LISTENER
)

# ---- logins, by listener
_SOCKETS: Final = "kafka.server:type=socket-server-metrics,name="
AUTHENTICATIONS: Final = make_kafka_metric(
    f"{_SOCKETS}successful-authentication-total",
    "Clients that proved who they are: by a login, or on a listener without logins by TLS.",
    _BY_LISTENER,
)
FAILED_AUTHENTICATIONS: Final = make_kafka_metric(
    f"{_SOCKETS}failed-authentication-total",
    "Logins that failed, and handshakes of TLS that did; the log has reasons.",
    _BY_LISTENER,
)
REAUTHENTICATIONS: Final = make_kafka_metric(
    f"{_SOCKETS}successful-reauthentication-total", "Sessions that were renewed (KIP-368).", _BY_LISTENER
)
FAILED_REAUTHENTICATIONS: Final = make_kafka_metric(
    f"{_SOCKETS}failed-reauthentication-total", "Sessions whose renewal failed.", _BY_LISTENER
)
NO_REAUTHENTICATION: Final = make_kafka_metric(
    f"{_SOCKETS}successful-authentication-no-reauth-total",
    "Logins of clients that cannot renew a session.",
    _BY_LISTENER,
)
EXPIRED_KILLED: Final = make_kafka_metric(
    f"{_SOCKETS}expired-connections-killed-count",
    "Connections closed because their session had ended and was not renewed.",
    _BY_LISTENER,
)
JWKS_FETCH_FAILED: Final = make_gauge(
    "jwks_fetch_failed",
    "1 while the keys that tokens are checked with cannot be fetched, and those before are in use.",
    _BY_LISTENER,
)
JWKS_FETCHES: Final = make_counter("jwks_fetches", "Fetches of these keys.", _BY_LISTENER)

# ---- authorization
ACLS: Final = make_kafka_metric(
    "kafka.server:type=authorizer-metrics,name=acls-total-count", "ACLs in force."
)

# ---- counters
AUTHORIZATIONS: Final = make_counter(
    "authorizations", "Checks of rights by the authorizer, by their result: allowed or denied.", ("result",)
)
VERIFICATION_FAILURES: Final = make_kafka_metric(
    "kafka.server:type=AddPartitionsToTxnManager,name=VerificationFailureRate",
    "Batches refused because the coordinator did not have their partition in a transaction.",
)
FORCED: Final = make_counter(
    "forced_outcomes",
    "Transactions aborted without their client having asked: terminated (InitProducerId), timed_out, "
    "marker (an administrator, one partition).",
    ("cause",),
)
DELETIONS_REFUSED: Final = make_counter(
    "deletions_refused",
    "Deletions of topics, records, groups or their offsets refused because of open transactions.",
)
RELOADS: Final = make_counter(
    "coordinator_reloads",
    "Partitions of a coordinator's topic that were read back and serve again.",
    ("topic",),
)
