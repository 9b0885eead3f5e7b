"""The table of rights: one row for each right of each API."""

from typing import Any

from tests.support.rights import (
    GROUP,
    ID,
    ON_GROUP,
    ON_ID,
    ON_TOPIC,
    TOPIC,
    Row,
    build,
    entry_codes,
    fetch,
    iter_codes,
    on,
    partition_codes,
    produce,
    top_code,
    topic_rows,
)

from tallystick.broker.authorizer.authorizer import CLUSTER_RESOURCE, Operation, topic_resource
from tallystick.kernel.codes import ErrorCode as E
from tallystick.protocol.apis import ApiKey

Op, K = Operation, ApiKey
WRITE_ID, READ_GROUP, READ_TOPIC = (Op.WRITE, ON_ID), (Op.READ, ON_GROUP), (Op.READ, ON_TOPIC)
_T29, _G30, _C31, _I53 = (
    E.TOPIC_AUTHORIZATION_FAILED,
    E.GROUP_AUTHORIZATION_FAILED,
    E.CLUSTER_AUTHORIZATION_FAILED,
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)


def _config(key: ApiKey, kind: int, name: str) -> Any:
    configs = {"configs": []} if key is not K.DESCRIBE_CONFIGS else {"configuration_keys": None}
    more = {} if key is K.DESCRIBE_CONFIGS else {"validate_only": True}
    resource = {"resource_type": kind, "resource_name": name, **configs}
    return lambda topic: build(
        key, {**more, "resources": [{**resource, "resource_name": topic if kind == 2 else name}]}
    )


_COMMITTED = {"partition_index": 0, "committed_offset": 5, "committed_metadata": None}
_PAIR = {"producer_id": 0, "producer_epoch": 0}


def _offset_fetch(topic: str) -> object:
    groups = [{"group_id": GROUP, "topics": [{"name": topic, "partition_indexes": [0]}]}]
    return build(K.OFFSET_FETCH, {"groups": groups})


def _add_partitions(topic: str) -> object:
    return build(
        K.ADD_PARTITIONS_TO_TXN,
        {
            "v3_and_below_transactional_id": ID,
            "v3_and_below_producer_id": 0,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [
                {"name": topic, "partitions": [0]},
                {"name": "payments", "partitions": [0]},
            ],
        },
    )


def _verify_partitions(topic: str) -> object:
    topics = [{"name": topic, "partitions": [0]}]
    verified = {"transactional_id": ID, **_PAIR, "verify_only": True, "topics": topics}
    # Kafka never answers a request without transactions.
    return build(K.ADD_PARTITIONS_TO_TXN, {"transactions": [verified]})


def _txn_offsets(topic: str) -> object:
    topics = [{"name": topic, "partitions": [_COMMITTED]}]
    return build(K.TXN_OFFSET_COMMIT, {"transactional_id": ID, "group_id": GROUP, **_PAIR, "topics": topics})


def _init(**more: Any) -> Any:
    content = {"transactional_id": ID, "transaction_timeout_ms": 1_000, **more}
    return lambda _: build(K.INIT_PRODUCER_ID, content)


def _markers(_: str) -> object:
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    marker = {**_PAIR, "transaction_result": False, "topics": topics, "coordinator_epoch": 0}
    return build(K.WRITE_TXN_MARKERS, {"markers": [marker]})


def _of_group(key: ApiKey, **more: Any) -> Any:
    return lambda _: build(key, {"group_id": GROUP, **more})


def _delete_offsets(topic: str) -> object:
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    return build(K.OFFSET_DELETE, {"group_id": GROUP, "topics": topics})


def _named(key: ApiKey, **content: Any) -> Any:
    return lambda _: build(key, content)


def _create_topic(_: str) -> object:
    topic = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return build(K.CREATE_TOPICS, {"topics": [topic], "validate_only": True})


def _grow(topic: str) -> object:
    topics = [{"name": topic, "count": 3, "assignments": None}]
    return build(K.CREATE_PARTITIONS, {"topics": topics, "timeout_ms": 1_000, "validate_only": True})


def _metadata(topic: str) -> object:
    return build(K.METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})


_RECORDS = (
    Row(
        name="produce",
        version=9,
        request=produce,
        rights=on(Op.WRITE, ON_TOPIC),
        code=_T29,
        places=partition_codes("responses", "partition_responses"),
        is_absent=True,
    ),
    Row(
        name="produce-transactional",
        version=9,
        request=lambda topic: produce(topic, transactional=True),
        rights=(WRITE_ID,),
        others=on(Op.WRITE, ON_TOPIC),
        code=_I53,
        places=partition_codes("responses", "partition_responses"),
        is_absent=True,
    ),
    Row(
        name="fetch",
        version=12,
        request=fetch,
        rights=(READ_TOPIC,),
        code=_T29,
        places=partition_codes("responses"),
        is_absent=True,
    ),
    Row(
        name="fetch-as-a-replica",
        version=12,
        request=lambda topic: fetch(topic, replica_id=2),
        rights=on(Op.CLUSTER_ACTION, CLUSTER_RESOURCE),
        code=_T29,
        places=partition_codes("responses"),
        is_absent=True,
    ),
    Row(
        name="list-offsets",
        version=7,
        request=topic_rows(K.LIST_OFFSETS, 7, "name", {"partition_index": 0, "timestamp": -1}, replica_id=-1),
        rights=on(Op.DESCRIBE, ON_TOPIC),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="offset-for-leader-epoch",
        version=4,
        request=topic_rows(K.OFFSET_FOR_LEADER_EPOCH, 4, "topic", {"partition": 0, "leader_epoch": 0}),
        rights=((Op.CLUSTER_ACTION, CLUSTER_RESOURCE), (Op.DESCRIBE, ON_TOPIC)),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="delete-records",
        version=2,
        request=topic_rows(
            K.DELETE_RECORDS, 2, "name", {"partition_index": 0, "offset": 0}, timeout_ms=1_000
        ),
        rights=on(Op.DELETE, ON_TOPIC),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="describe-producers",
        version=0,
        request=lambda topic: build(
            K.DESCRIBE_PRODUCERS, {"topics": [{"name": topic, "partition_indexes": [0]}]}
        ),
        rights=(READ_TOPIC,),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
)

_TOPICS = (
    Row(
        name="metadata",
        version=12,
        request=_metadata,
        rights=on(Op.DESCRIBE, ON_TOPIC),
        code=_T29,
        places=entry_codes("topics"),
        is_absent=True,
    ),
    Row(
        name="describe-topic-partitions",
        version=0,
        request=lambda topic: build(K.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": topic}]}),
        rights=on(Op.DESCRIBE, ON_TOPIC),
        code=_T29,
        places=entry_codes("topics"),
        is_absent=True,
    ),
    Row(
        name="create-topics",
        version=7,
        request=_create_topic,
        rights=((Op.CREATE, CLUSTER_RESOURCE), (Op.CREATE, topic_resource("new"))),
        others=on(Op.DESCRIBE_CONFIGS, topic_resource("new")),
        code=_T29,
        places=entry_codes("topics"),
    ),
    Row(
        name="create-topics-configs",
        version=7,
        request=_create_topic,
        rights=on(Op.DESCRIBE_CONFIGS, topic_resource("new")),
        others=on(Op.CREATE, CLUSTER_RESOURCE),
        code=_T29,
        places=lambda answer: [each.topic_config_error_code for each in answer.topics],
    ),
    Row(
        name="delete-topics",
        version=5,
        request=lambda topic: build(K.DELETE_TOPICS, {"topic_names": [topic], "timeout_ms": 1_000}),
        rights=((Op.DELETE, CLUSTER_RESOURCE), (Op.DELETE, ON_TOPIC)),
        code=_T29,
        places=entry_codes("responses"),
    ),
    Row(
        name="delete-topics-not-described",
        version=6,
        request=lambda topic: build(
            K.DELETE_TOPICS, {"topics": [{"name": topic, "topic_id": "0" * 32}], "timeout_ms": 1_000}
        ),
        rights=((Op.DELETE, CLUSTER_RESOURCE), (Op.DESCRIBE, ON_TOPIC)),
        others=on(Op.DELETE, ON_TOPIC),
        code=_T29,
        places=entry_codes("responses"),
        is_absent=True,
    ),
    Row(
        name="create-partitions",
        version=3,
        request=_grow,
        rights=on(Op.ALTER, ON_TOPIC),
        code=_T29,
        places=entry_codes("results"),
        is_absent=True,
    ),
)

_GROUPS = (
    Row(
        name="offset-commit-group",
        version=9,
        request=topic_rows(K.OFFSET_COMMIT, 9, "name", _COMMITTED, group_id=GROUP, member_id=""),
        rights=(READ_GROUP,),
        others=(READ_TOPIC,),
        code=_G30,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="offset-commit-topic",
        version=9,
        request=topic_rows(K.OFFSET_COMMIT, 9, "name", _COMMITTED, group_id=GROUP, member_id=""),
        rights=(READ_TOPIC,),
        others=(READ_GROUP,),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="offset-fetch-group",
        version=9,
        request=_offset_fetch,
        rights=on(Op.DESCRIBE, ON_GROUP),
        others=on(Op.DESCRIBE, ON_TOPIC),
        code=_G30,
        places=entry_codes("groups"),
        is_absent=True,
    ),
    Row(
        name="offset-fetch-topic",
        version=9,
        request=_offset_fetch,
        rights=on(Op.DESCRIBE, ON_TOPIC),
        others=on(Op.DESCRIBE, ON_GROUP),
        code=_T29,
        places=lambda answer: partition_codes()(answer.groups[0]),
        is_absent=True,
    ),
    Row(
        name="find-group-coordinator",
        version=4,
        request=_named(K.FIND_COORDINATOR, key_type=0, coordinator_keys=[GROUP]),
        rights=on(Op.DESCRIBE, ON_GROUP),
        code=_G30,
        places=entry_codes("coordinators"),
    ),
    Row(
        name="find-transaction-coordinator",
        version=4,
        request=_named(K.FIND_COORDINATOR, key_type=1, coordinator_keys=[ID]),
        rights=on(Op.DESCRIBE, ON_ID),
        code=_I53,
        places=entry_codes("coordinators"),
    ),
    Row(
        name="join-group",
        version=9,
        request=_of_group(
            K.JOIN_GROUP,
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": ""}],
        ),
        rights=(READ_GROUP,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="sync-group",
        version=4,
        request=_of_group(K.SYNC_GROUP, generation_id=1, member_id="m"),
        rights=(READ_GROUP,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="heartbeat",
        version=4,
        request=_of_group(K.HEARTBEAT, generation_id=1, member_id="m"),
        rights=(READ_GROUP,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="leave-group",
        version=5,
        request=_of_group(K.LEAVE_GROUP, members=[{"member_id": "m"}]),
        rights=(READ_GROUP,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="describe-groups",
        version=5,
        request=_named(K.DESCRIBE_GROUPS, groups=[GROUP], include_authorized_operations=True),
        rights=on(Op.DESCRIBE, ON_GROUP),
        code=_G30,
        places=entry_codes("groups"),
    ),
    Row(
        name="delete-groups",
        version=2,
        request=_named(K.DELETE_GROUPS, groups_names=[GROUP]),
        rights=on(Op.DELETE, ON_GROUP),
        code=_G30,
        places=entry_codes("results"),
    ),
    Row(
        name="offset-delete-group",
        version=0,
        request=_delete_offsets,
        rights=on(Op.DELETE, ON_GROUP),
        others=(READ_TOPIC,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="offset-delete-topic",
        version=0,
        request=_delete_offsets,
        rights=(READ_TOPIC,),
        others=on(Op.DELETE, ON_GROUP),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
)

_TRANSACTIONS = (
    Row(
        name="init-producer-id-transactional",
        version=6,
        request=_init(),
        rights=(WRITE_ID,),
        code=_I53,
        places=top_code,
    ),
    Row(
        name="init-producer-id-two-phase",
        version=6,
        request=_init(enable_2pc=True),
        rights=on(Op.TWO_PHASE_COMMIT, ON_ID),
        others=(WRITE_ID,),
        code=_I53,
        places=top_code,
    ),
    Row(
        name="init-producer-id-idempotent",
        version=5,
        request=_init(transactional_id=None),
        rights=((Op.IDEMPOTENT_WRITE, CLUSTER_RESOURCE), (Op.WRITE, topic_resource("*"))),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="add-partitions-id",
        version=3,
        request=_add_partitions,
        rights=(WRITE_ID,),
        others=((Op.WRITE, ON_TOPIC), (Op.WRITE, topic_resource("payments"))),
        code=_I53,
        places=lambda answer: [
            code for topic in answer.results_by_topic_v3_and_below for code in iter_codes(topic)
        ],
    ),
    Row(
        name="add-partitions-of-brokers",
        version=4,
        request=_verify_partitions,
        rights=on(Op.CLUSTER_ACTION, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="add-offsets-id",
        version=3,
        request=_of_group(K.ADD_OFFSETS_TO_TXN, transactional_id=ID, **_PAIR),
        rights=(WRITE_ID,),
        others=(READ_GROUP,),
        code=_I53,
        places=top_code,
    ),
    Row(
        name="add-offsets-group",
        version=3,
        request=_of_group(K.ADD_OFFSETS_TO_TXN, transactional_id=ID, **_PAIR),
        rights=(READ_GROUP,),
        others=(WRITE_ID,),
        code=_G30,
        places=top_code,
    ),
    Row(
        name="end-txn",
        version=4,
        request=_named(K.END_TXN, transactional_id=ID, **_PAIR, committed=True),
        rights=(WRITE_ID,),
        code=_I53,
        places=top_code,
    ),
    Row(
        name="write-txn-markers",
        version=1,
        request=_markers,
        rights=((Op.ALTER, CLUSTER_RESOURCE), (Op.CLUSTER_ACTION, CLUSTER_RESOURCE)),
        code=_C31,
        places=lambda answer: partition_codes()(answer.markers[0]),
    ),
    Row(
        name="txn-offset-commit-id",
        version=3,
        request=_txn_offsets,
        rights=(WRITE_ID,),
        others=(READ_GROUP, READ_TOPIC),
        code=_I53,
        places=partition_codes(),
    ),
    Row(
        name="txn-offset-commit-group",
        version=3,
        request=_txn_offsets,
        rights=(READ_GROUP,),
        others=(WRITE_ID, READ_TOPIC),
        code=_G30,
        places=partition_codes(),
    ),
    Row(
        name="txn-offset-commit-topic",
        version=3,
        request=_txn_offsets,
        rights=(READ_TOPIC,),
        others=(WRITE_ID, READ_GROUP),
        code=_T29,
        places=partition_codes(),
        is_absent=True,
    ),
    Row(
        name="describe-transactions",
        version=0,
        request=_named(K.DESCRIBE_TRANSACTIONS, transactional_ids=[ID]),
        rights=on(Op.DESCRIBE, ON_ID),
        code=_I53,
        places=entry_codes("transaction_states"),
    ),
)

_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_CONFIGS = tuple(
    Row(
        name=f"{key.name.lower().replace('_', '-')}-{name}",
        version=1,
        request=_config(key, kind, resource_name),
        rights=on(operation, resource),
        code=code,
        places=entry_codes("results" if key is K.DESCRIBE_CONFIGS else "responses"),
        is_absent=kind == 2,
    )
    for key, operation in (
        (K.DESCRIBE_CONFIGS, Op.DESCRIBE_CONFIGS),
        (K.ALTER_CONFIGS, Op.ALTER_CONFIGS),
        (K.INCREMENTAL_ALTER_CONFIGS, Op.ALTER_CONFIGS),
    )
    for name, kind, resource_name, resource, code in (
        ("topic", 2, TOPIC, ON_TOPIC, _T29),
        ("broker", 4, "1", CLUSTER_RESOURCE, _C31),
        ("group", 32, GROUP, ON_GROUP, _G30),
    )
)

_CLUSTER = (
    Row(
        name="describe-acls",
        version=3,
        request=_named(K.DESCRIBE_ACLS, **_FILTER),
        rights=on(Op.DESCRIBE, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="create-acls",
        version=3,
        request=_named(
            K.CREATE_ACLS,
            creations=[
                {
                    "resource_type": 2,
                    "resource_name": "x",
                    "principal": "User:x",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ],
        ),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=entry_codes("results"),
    ),
    Row(
        name="delete-acls",
        version=3,
        request=_named(K.DELETE_ACLS, filters=[{**_FILTER, "principal_filter": "User:x"}]),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=entry_codes("filter_results"),
    ),
    Row(
        name="describe-client-quotas",
        version=1,
        request=_named(K.DESCRIBE_CLIENT_QUOTAS, components=[{"entity_type": "user", "match_type": 2}]),
        rights=on(Op.DESCRIBE_CONFIGS, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="alter-client-quotas",
        version=1,
        request=_named(
            K.ALTER_CLIENT_QUOTAS,
            entries=[
                {
                    "entity": [{"entity_type": "user", "entity_name": "x"}],
                    "ops": [{"key": "producer_byte_rate", "remove": True}],
                }
            ],
        ),
        rights=on(Op.ALTER_CONFIGS, CLUSTER_RESOURCE),
        code=_C31,
        places=entry_codes("entries"),
    ),
    Row(
        name="describe-user-scram-credentials",
        version=0,
        # Named: without any, a broker of Kafka's that refuses the request never answers it.
        request=_named(K.DESCRIBE_USER_SCRAM_CREDENTIALS, users=[{"name": "x"}]),
        rights=on(Op.DESCRIBE, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="alter-user-scram-credentials",
        version=0,
        request=_named(K.ALTER_USER_SCRAM_CREDENTIALS, deletions=[{"name": "x", "mechanism": 1}]),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=entry_codes("results"),
    ),
    Row(
        name="describe-log-dirs",
        version=4,
        request=_named(K.DESCRIBE_LOG_DIRS, topics=None),
        rights=on(Op.DESCRIBE, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="alter-replica-log-dirs",
        version=2,
        request=_named(
            K.ALTER_REPLICA_LOG_DIRS,
            dirs=[{"path": "data", "topics": [{"name": TOPIC, "partitions": [0]}]}],
        ),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=partition_codes("results"),
    ),
    Row(
        name="elect-leaders",
        version=2,
        request=_named(K.ELECT_LEADERS, topic_partitions=[{"topic": TOPIC, "partitions": [0]}]),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=lambda answer: [
            answer.error_code,
            *partition_codes("replica_election_results", "partition_result")(answer),
        ],
    ),
    Row(
        name="alter-partition-reassignments",
        version=0,
        request=_named(K.ALTER_PARTITION_REASSIGNMENTS, topics=[]),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="list-partition-reassignments",
        version=0,
        request=_named(K.LIST_PARTITION_REASSIGNMENTS),
        rights=on(Op.DESCRIBE, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="describe-quorum",
        version=1,
        request=_named(K.DESCRIBE_QUORUM, topics=[]),
        rights=on(Op.DESCRIBE, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="update-features",
        version=1,
        request=_named(K.UPDATE_FEATURES, feature_updates=[], validate_only=True),
        rights=on(Op.ALTER, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
    Row(
        name="list-config-resources",
        version=1,
        request=_named(K.LIST_CONFIG_RESOURCES),
        rights=on(Op.DESCRIBE_CONFIGS, CLUSTER_RESOURCE),
        code=_C31,
        places=top_code,
    ),
)

ROWS = (*_RECORDS, *_TOPICS, *_GROUPS, *_TRANSACTIONS, *_CONFIGS, *_CLUSTER)
