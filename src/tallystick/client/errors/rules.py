"""Rules for error codes: the meaning of a code for each API, and the remedy. Pure.

The meaning of a code depends on the API, so the rules are keyed by both; "*" is the fallback, and an unknown
number gets the worst rule. No other module decides about retries.

A request that waits for a write to a coordinator's log does not get the log's error code: 7, 19, 20 and 3 are
answered as 15, and 6 and 56 as 16 (Kafka: `TransactionStateManager.appendTransactionToLog`,
`CoordinatorOperationExceptionHelper`). A write that timed out may still become durable. Hence 15 and 16 have
an unknown effect for the APIs that write there, and only for those.

Sources: KIP-98, KIP-360, KIP-447, KIP-588, KIP-890; Kafka 4.3 TransactionManager, Sender, RequestUtils.
"""

from collections.abc import Iterator
from typing import Final

from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.errors import Effect, Remedy
from tallystick.kernel.value import Value


class Rule(Value):
    """Effect that the request may have had, and what to do."""

    effect: Effect
    remedy: Remedy


NONE, UNKNOWN = Effect.NONE, Effect.UNKNOWN
RETRY, REFRESH, FIND_COORDINATOR = Remedy.RETRY, Remedy.REFRESH, Remedy.FIND_COORDINATOR
ABORT, STOP, LOOK_UP, REPORT = Remedy.ABORT, Remedy.STOP, Remedy.LOOK_UP, Remedy.REPORT

UNKNOWN_CODE_RULE: Final = Rule(UNKNOWN, REPORT)

# These APIs only read: a lost request has no effect.
READ_ONLY_APIS: Final = frozenset(
    {
        "ApiVersions",
        "ConsumerGroupDescribe",
        "DescribeAcls",
        "DescribeClientQuotas",
        "DescribeCluster",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeLogDirs",
        "DescribeProducers",
        "DescribeTopicPartitions",
        "DescribeTransactions",
        "DescribeUserScramCredentials",
        "Fetch",
        "FindCoordinator",
        "ListConfigResources",
        "ListGroups",
        "ListOffsets",
        "ListPartitionReassignments",
        "ListTransactions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
    }
)

# These APIs are answered after a write to the coordinator's log.
_COORDINATOR_WRITE_APIS: Final = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "TxnOffsetCommit",
    "OffsetCommit",
    "OffsetDelete",
    "DeleteGroups",
    "JoinGroup",
    "SyncGroup",
    "LeaveGroup",
)

_DEFAULT_RULES: Final[dict[Rule, tuple[E, ...]]] = {
    Rule(NONE, RETRY): (
        E.CORRUPT_MESSAGE,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.NOT_ENOUGH_REPLICAS,
        E.CONCURRENT_TRANSACTIONS,
        E.FETCH_SESSION_ID_NOT_FOUND,
        E.INVALID_FETCH_SESSION_EPOCH,
        E.OFFSET_NOT_AVAILABLE,
        E.PREFERRED_LEADER_NOT_AVAILABLE,
        E.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        E.ELECTION_NOT_NEEDED,
        E.UNSTABLE_OFFSET_COMMIT,
        E.THROTTLING_QUOTA_EXCEEDED,
        E.FETCH_SESSION_TOPIC_ID_ERROR,
        E.SHARE_SESSION_NOT_FOUND,
        E.INVALID_SHARE_SESSION_EPOCH,
        E.SHARE_SESSION_LIMIT_REACHED,
    ),
    Rule(UNKNOWN, RETRY): (
        E.REQUEST_TIMED_OUT,
        E.NETWORK_EXCEPTION,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    Rule(NONE, REFRESH): (
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.LEADER_NOT_AVAILABLE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.REPLICA_NOT_AVAILABLE,
        E.NOT_CONTROLLER,
        E.LISTENER_NOT_FOUND,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.UNKNOWN_TOPIC_ID,
        E.INCONSISTENT_TOPIC_ID,
        E.REBOOTSTRAP_REQUIRED,
    ),
    # The broker's disk failed, possibly after the record was written.
    Rule(UNKNOWN, REFRESH): (E.KAFKA_STORAGE_ERROR,),
    Rule(NONE, FIND_COORDINATOR): (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR),
    Rule(NONE, ABORT): (E.TRANSACTION_ABORTABLE,),
    # A newer producer has the id, or the broker forgot it: all further requests will be refused.
    Rule(NONE, STOP): (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_ID_MAPPING),
    UNKNOWN_CODE_RULE: (E.UNKNOWN_SERVER_ERROR,),
}

# KIP-890 and Kafka's TransactionManager: codes that fail one transaction, and codes that fail the producer.
_RULES_BY_API: Final[dict[tuple[str, Rule], tuple[E, ...]]] = {
    # KIP-360: the coordinator begins to abort the open transaction before it answers 51.
    ("InitProducerId", Rule(UNKNOWN, RETRY)): (E.CONCURRENT_TRANSACTIONS,),
    ("AddPartitionsToTxn", Rule(NONE, ABORT)): (
        E.TOPIC_AUTHORIZATION_FAILED,
        E.OPERATION_NOT_ATTEMPTED,
        E.UNKNOWN_PRODUCER_ID,
    ),
    ("AddPartitionsToTxn", Rule(NONE, STOP)): (E.INVALID_TXN_STATE, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ("AddOffsetsToTxn", Rule(NONE, ABORT)): (E.GROUP_AUTHORIZATION_FAILED, E.UNKNOWN_PRODUCER_ID),
    ("AddOffsetsToTxn", Rule(NONE, STOP)): (E.INVALID_TXN_STATE, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    # KIP-447: the group rebalanced, or refused these offsets; the producer itself is still good.
    ("TxnOffsetCommit", Rule(NONE, ABORT)): (
        E.OFFSET_METADATA_TOO_LARGE,
        E.ILLEGAL_GENERATION,
        E.UNKNOWN_MEMBER_ID,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.GROUP_AUTHORIZATION_FAILED,
        E.GROUP_ID_NOT_FOUND,
        E.FENCED_INSTANCE_ID,
        E.FENCED_MEMBER_EPOCH,
        E.STALE_MEMBER_EPOCH,
    ),
    ("TxnOffsetCommit", Rule(NONE, STOP)): (
        E.INVALID_TXN_STATE,
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ),
    ("TxnOffsetCommit", Rule(UNKNOWN, FIND_COORDINATOR)): (E.REQUEST_TIMED_OUT,),
    # The coordinator looks it up in its own metadata: the partition is gone, and its offset with it. Waiting
    # for it would hold up the commit of all others (Kafka: ConsumerCoordinator.OffsetCommitResponseHandler).
    ("OffsetCommit", Rule(NONE, REPORT)): (E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID),
    # 47 ends the transaction and not the producer: the broker translates the coordinator's 90 to it, and
    # the abort that follows moves the epoch on (KIP-588).
    ("Produce", Rule(NONE, ABORT)): (
        E.OUT_OF_ORDER_SEQUENCE_NUMBER,
        E.INVALID_PRODUCER_EPOCH,
        E.INVALID_TXN_STATE,
        E.UNKNOWN_PRODUCER_ID,
        E.MESSAGE_TOO_LARGE,
        E.RECORD_LIST_TOO_LARGE,
        E.INVALID_TOPIC_EXCEPTION,
        E.TOPIC_AUTHORIZATION_FAILED,
        E.INVALID_TIMESTAMP,
        E.INVALID_RECORD,
        E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        E.INVALID_REQUIRED_ACKS,
        E.POLICY_VIOLATION,
        E.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    # The broker wrote exactly these records too long ago to know where: a success, without an offset.
    ("Produce", Rule(UNKNOWN, REPORT)): (E.DUPLICATE_SEQUENCE_NUMBER,),
    ("Produce", Rule(NONE, STOP)): (
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.UNSUPPORTED_VERSION,
    ),
    # 51 also says: this decision has been taken and is being carried out.
    ("EndTxn", Rule(UNKNOWN, RETRY)): (E.CONCURRENT_TRANSACTIONS,),
    # All of these may mean that the transaction was ended before, by this client or its successor.
    ("EndTxn", Rule(UNKNOWN, LOOK_UP)): (
        E.INVALID_PRODUCER_EPOCH,
        E.INVALID_TXN_STATE,
        E.INVALID_PRODUCER_ID_MAPPING,
        E.PRODUCER_FENCED,
    ),
    ("EndTxn", Rule(NONE, ABORT)): (E.UNKNOWN_PRODUCER_ID,),
    ("EndTxn", Rule(NONE, STOP)): (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,),
    # There is no coordinator to look up while looking it up.
    ("FindCoordinator", Rule(NONE, RETRY)): (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR),
    # Forced markers of an administrator: the partition says which of the two sides is newer.
    ("WriteTxnMarkers", Rule(NONE, REPORT)): (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_ID_MAPPING),
    ("WriteTxnMarkers", Rule(UNKNOWN, RETRY)): (E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,),
}


def _expand_rules() -> Iterator[tuple[tuple[str, E], Rule]]:
    for rule, codes in _DEFAULT_RULES.items():
        yield from ((("*", code), rule) for code in codes)
    for api in _COORDINATOR_WRITE_APIS:
        yield from (
            ((api, code), Rule(UNKNOWN, FIND_COORDINATOR))
            for code in (E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR)
        )
    for (api, rule), codes in _RULES_BY_API.items():
        yield from (((api, code), rule) for code in codes)


RULES: Final = dict(_expand_rules())
_PERMANENT_REFUSAL: Final = Rule(NONE, REPORT)


def find_rule(api: str, code: int) -> Rule:
    """Return the rule for `code` as an answer to `api`.

    A known code without a row is a permanent refusal; a number this version does not know is WORST.
    """
    try:
        error_code = E(code)
    except ValueError:
        return _clear_read_effect(api, UNKNOWN_CODE_RULE)
    rule = RULES.get((api, error_code)) or RULES.get(("*", error_code)) or _PERMANENT_REFUSAL
    return _clear_read_effect(api, rule)


def infer_loss_effect(api: str) -> Effect:
    """Return the possible effect of a request that was sent and never answered."""
    return NONE if api in READ_ONLY_APIS else UNKNOWN


def _clear_read_effect(api: str, rule: Rule) -> Rule:
    return Rule(NONE, rule.remedy) if api in READ_ONLY_APIS else rule
