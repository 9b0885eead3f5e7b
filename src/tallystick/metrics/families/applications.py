"""The metrics of applications: of their clients, dual writes and queries of Spark."""

from typing import Final

from tallystick.metrics.model import make_counter, make_gauge, make_histogram, make_kafka_metric

# ---- clients, which count under Kafka's names: those of `metrics()` are added to these
RECORDS_LAG: Final = make_kafka_metric(
    "kafka.consumer:type=consumer-fetch-manager-metrics,name=records-lag",
    "Records between the position of a consumer and the end that it may read to.",
    ("client_id", "topic", "partition"),
)

# ---- dual writes
_BY_WRITER: Final = ("writer",)
WRITES: Final = make_counter(
    "dual_writes",
    "Dual writes that ended, by outcome: committed, by the database, which decides both sides; rolled_back; "
    "in_doubt, where it is not known whether the database has committed.",
    ("writer", "outcome"),
)
STEP_SECONDS: Final = make_histogram(
    "dual_write_step_seconds",
    "Time of each step of a dual write that succeeded, by its name in the recipe; other sums up those of "
    "recoveries.",
    ("writer", "step"),
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
RECOVERIES: Final = make_counter(
    "dual_write_recoveries", "Recoveries of writers, by result: recovered or failed.", ("writer", "result")
)
RETRIES: Final = make_counter(
    "dual_write_retries", "Repetitions of work that was not committed (run, transactional).", _BY_WRITER
)
LEASES: Final = make_counter(
    "dual_write_leases",
    "Leases taken; lost to another process, or given up because the sides of the id contradict each other; "
    "expired ones of other processes, whose ids were recovered.",
    ("writer", "event"),
)
WRITERS: Final = make_gauge("dual_write_writers", "Writers that are not closed.", _BY_WRITER)
WRITERS_IN_DOUBT: Final = make_gauge(
    "dual_write_writers_in_doubt",
    "Of these, those whose last write has an unknown outcome, until a recovery.",
    _BY_WRITER,
)
WRITERS_UNSETTLED: Final = make_gauge(
    "dual_write_writers_unsettled", "Of these, those that need a recovery before the next write.", _BY_WRITER
)
POOL_FREE: Final = make_gauge("dual_write_pool_free", "Writers of a pool that no caller uses.", _BY_WRITER)
POOL_LEASES: Final = make_gauge("dual_write_pool_leases", "Leases of ids that a pool holds.", _BY_WRITER)

# ---- streaming queries of Spark
_BY_QUERY: Final = ("query",)
QUERY_BATCHES: Final = make_counter("spark_query_batches", "Batches that a query has committed.", _BY_QUERY)
QUERY_ROWS: Final = make_counter(
    "spark_query_rows", "Rows that a query has read, replays included.", _BY_QUERY
)
QUERY_REPLAYS: Final = make_counter(
    "spark_query_replays", "Batches that an earlier run of the query had begun and not finished.", _BY_QUERY
)
QUERY_PHASE_SECONDS: Final = make_histogram(
    "spark_query_phase_seconds",
    "Time of each phase of a batch by Spark's names: addBatch has tasks, decision and commits, "
    "triggerExecution is the whole.",
    ("query", "phase"),
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
QUERY_TERMINATIONS: Final = make_counter(
    "spark_query_terminations", "Queries that ended, by result: stopped or failed.", ("query", "result")
)
QUERY_ACTIVE: Final = make_gauge("spark_query_active", "1 while a query runs.", _BY_QUERY)
QUERY_BATCH: Final = make_gauge("spark_query_batch", "Number of the last batch of a query.", _BY_QUERY)
QUERY_LAG: Final = make_gauge(
    "spark_query_lag_records", "Kafka records that were there and not read by the last batch.", _BY_QUERY
)
QUERY_PARTICIPANTS: Final = make_gauge(
    "spark_query_participants", "Transactions of the last decision that was read (read_decisions).", _BY_QUERY
)
