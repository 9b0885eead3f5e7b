"""Request handlers, one module for each API, and the table that dispatches and ApiVersions advertises."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.broker.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_replica_log_dirs,
    api_versions,
    consumer_groups,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    partition_reassignments,
    produce,
    sasl,
    scram_credentials,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from tallystick.broker.handlers.dispatch import HandlerEntry, message_entry, raw_entry
from tallystick.protocol.apis import API_SPECS, ApiKey

_HANDLER_ENTRIES: Final = (
    raw_entry(ApiKey.PRODUCE, produce.handle, pipelined=True, carries_records=True),
    raw_entry(ApiKey.FETCH, fetch.handle, cancellable=True),
    message_entry(ApiKey.LIST_OFFSETS, list_offsets.handle),
    message_entry(ApiKey.METADATA, metadata.handle),
    message_entry(ApiKey.SASL_HANDSHAKE, sasl.handle_handshake),
    message_entry(ApiKey.SASL_AUTHENTICATE, sasl.handle_token),
    message_entry(ApiKey.FIND_COORDINATOR, find_coordinator.handle),
    message_entry(ApiKey.JOIN_GROUP, join_group.handle),
    message_entry(ApiKey.SYNC_GROUP, sync_group.handle),
    message_entry(ApiKey.HEARTBEAT, heartbeat.handle),
    message_entry(ApiKey.LEAVE_GROUP, leave_group.handle),
    # Commits of one connection may share a sync; the group's lane keeps their order.
    message_entry(ApiKey.OFFSET_COMMIT, offset_commit.handle, pipelined=True),
    message_entry(ApiKey.OFFSET_FETCH, offset_fetch.handle),
    message_entry(ApiKey.OFFSET_DELETE, offset_delete.handle),
    message_entry(ApiKey.LIST_GROUPS, list_groups.handle),
    message_entry(ApiKey.DESCRIBE_GROUPS, describe_groups.handle),
    message_entry(ApiKey.DELETE_GROUPS, delete_groups.handle),
    message_entry(ApiKey.CREATE_TOPICS, create_topics.handle),
    message_entry(ApiKey.DELETE_TOPICS, delete_topics.handle),
    message_entry(ApiKey.DELETE_RECORDS, delete_records.handle),
    message_entry(ApiKey.INIT_PRODUCER_ID, init_producer_id.handle),
    message_entry(ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn.handle),
    message_entry(ApiKey.ADD_OFFSETS_TO_TXN, add_offsets_to_txn.handle),
    message_entry(ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit.handle),
    message_entry(ApiKey.END_TXN, end_txn.handle),
    message_entry(ApiKey.WRITE_TXN_MARKERS, write_txn_markers.handle),
    message_entry(ApiKey.DESCRIBE_PRODUCERS, describe_producers.handle),
    message_entry(ApiKey.DESCRIBE_TRANSACTIONS, describe_transactions.handle),
    message_entry(ApiKey.LIST_TRANSACTIONS, list_transactions.handle),
    message_entry(ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch.handle),
    message_entry(ApiKey.DESCRIBE_CONFIGS, describe_configs.handle),
    message_entry(ApiKey.ALTER_CONFIGS, alter_configs.handle),
    message_entry(ApiKey.DESCRIBE_ACLS, acls.describe),
    message_entry(ApiKey.CREATE_ACLS, acls.create),
    message_entry(ApiKey.DELETE_ACLS, acls.delete),
    message_entry(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, scram_credentials.describe),
    message_entry(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, scram_credentials.alter),
    message_entry(ApiKey.ALTER_REPLICA_LOG_DIRS, alter_replica_log_dirs.handle),
    message_entry(ApiKey.DESCRIBE_LOG_DIRS, describe_log_dirs.handle),
    message_entry(ApiKey.CREATE_PARTITIONS, create_partitions.handle),
    message_entry(ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs.handle),
    message_entry(ApiKey.ELECT_LEADERS, elect_leaders.handle),
    message_entry(ApiKey.ALTER_PARTITION_REASSIGNMENTS, partition_reassignments.alter),
    message_entry(ApiKey.DESCRIBE_QUORUM, describe_quorum.handle),
    message_entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_groups.heartbeat),
    message_entry(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_groups.describe),
    message_entry(ApiKey.LIST_PARTITION_REASSIGNMENTS, partition_reassignments.list_under_way),
    message_entry(ApiKey.UPDATE_FEATURES, update_features.handle),
    message_entry(ApiKey.DESCRIBE_CLUSTER, describe_cluster.handle),
    message_entry(ApiKey.LIST_CONFIG_RESOURCES, list_config_resources.handle),
    message_entry(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe_topic_partitions.handle),
)

_SPECS: Final = (*(entry.spec for entry in _HANDLER_ENTRIES), API_SPECS[ApiKey.API_VERSIONS])

HANDLERS: Final[Mapping[ApiKey, HandlerEntry]] = MappingProxyType(
    {
        entry.spec.key: entry
        for entry in (
            *_HANDLER_ENTRIES,
            message_entry(ApiKey.API_VERSIONS, api_versions.make_handler(_SPECS)),
        )
    }
)
