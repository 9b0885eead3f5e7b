"""Request handlers, one module for each API, and the table that dispatches and ApiVersions advertises.

    dispatch, ports     how a handler is called, and what of the broker it may reach
    authorization       the checks of rights that handlers share
    data/ txn/ groups/ topics/ cluster/ security/    the handlers, in the folders of `protocol.messages`

A handler authorises, translates the message, calls one driver and translates the result back.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.broker.handlers.cluster import (
    alter_configs,
    api_versions,
    client_quotas,
    describe_cluster,
    describe_configs,
    describe_quorum,
    find_coordinator,
    list_config_resources,
    update_features,
)
from tallystick.broker.handlers.data import (
    delete_records,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    produce,
)
from tallystick.broker.handlers.dispatch import HandlerEntry, message_entry, raw_entry
from tallystick.broker.handlers.groups import (
    administration,
    consumer_groups,
    membership,
    offset_commit,
    offset_delete,
    offset_fetch,
)
from tallystick.broker.handlers.security import acls, sasl, scram_credentials
from tallystick.broker.handlers.topics import (
    alter_replica_log_dirs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_log_dirs,
    describe_topic_partitions,
    elect_leaders,
    metadata,
    partition_reassignments,
)
from tallystick.broker.handlers.txn import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from tallystick.protocol.apis import API_SPECS, ApiKey

_HANDLER_ENTRIES: Final = (
    raw_entry(ApiKey.PRODUCE, produce.handle, pipelined=True, carries_records=True),
    raw_entry(ApiKey.FETCH, fetch.handle, cancellable=True),
    message_entry(ApiKey.LIST_OFFSETS, list_offsets.handle, cancellable=True),
    message_entry(ApiKey.METADATA, metadata.handle, cancellable=True),
    message_entry(ApiKey.SASL_HANDSHAKE, sasl.handle_handshake),
    message_entry(ApiKey.SASL_AUTHENTICATE, sasl.handle_token),
    message_entry(ApiKey.FIND_COORDINATOR, find_coordinator.handle, cancellable=True),
    message_entry(ApiKey.JOIN_GROUP, membership.join, cancellable=True, waits=True),
    message_entry(ApiKey.SYNC_GROUP, membership.sync, cancellable=True, waits=True),
    message_entry(ApiKey.HEARTBEAT, membership.heartbeat),
    message_entry(ApiKey.LEAVE_GROUP, membership.leave),
    # Commits of one connection may share a sync; the group's queue keeps their order.
    message_entry(ApiKey.OFFSET_COMMIT, offset_commit.handle, pipelined=True),
    message_entry(ApiKey.OFFSET_FETCH, offset_fetch.handle, cancellable=True),
    message_entry(ApiKey.OFFSET_DELETE, offset_delete.handle),
    message_entry(ApiKey.LIST_GROUPS, administration.list_all, cancellable=True),
    message_entry(ApiKey.DESCRIBE_GROUPS, administration.describe, cancellable=True),
    message_entry(ApiKey.DELETE_GROUPS, administration.delete),
    message_entry(ApiKey.CREATE_TOPICS, create_topics.handle),
    message_entry(ApiKey.DELETE_TOPICS, delete_topics.handle),
    message_entry(ApiKey.DELETE_RECORDS, delete_records.handle),
    message_entry(ApiKey.INIT_PRODUCER_ID, init_producer_id.handle),
    message_entry(ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn.handle),
    message_entry(ApiKey.ADD_OFFSETS_TO_TXN, add_offsets_to_txn.handle),
    message_entry(ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit.handle),
    message_entry(ApiKey.END_TXN, end_txn.handle),
    message_entry(ApiKey.WRITE_TXN_MARKERS, write_txn_markers.handle),
    message_entry(ApiKey.DESCRIBE_PRODUCERS, describe_producers.handle, cancellable=True),
    message_entry(ApiKey.DESCRIBE_TRANSACTIONS, describe_transactions.handle, cancellable=True),
    message_entry(ApiKey.LIST_TRANSACTIONS, list_transactions.handle, cancellable=True),
    message_entry(ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch.handle, cancellable=True),
    message_entry(ApiKey.DESCRIBE_CONFIGS, describe_configs.handle, cancellable=True),
    message_entry(ApiKey.ALTER_CONFIGS, alter_configs.handle),
    message_entry(ApiKey.DESCRIBE_ACLS, acls.describe, cancellable=True),
    message_entry(ApiKey.CREATE_ACLS, acls.create),
    message_entry(ApiKey.DELETE_ACLS, acls.delete),
    message_entry(ApiKey.DESCRIBE_CLIENT_QUOTAS, client_quotas.describe, cancellable=True),
    message_entry(ApiKey.ALTER_CLIENT_QUOTAS, client_quotas.alter, cancellable=True),
    message_entry(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, scram_credentials.describe, cancellable=True),
    message_entry(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, scram_credentials.alter),
    message_entry(ApiKey.ALTER_REPLICA_LOG_DIRS, alter_replica_log_dirs.handle, cancellable=True),
    message_entry(ApiKey.DESCRIBE_LOG_DIRS, describe_log_dirs.handle, cancellable=True),
    message_entry(ApiKey.CREATE_PARTITIONS, create_partitions.handle),
    message_entry(ApiKey.INCREMENTAL_ALTER_CONFIGS, alter_configs.handle),
    message_entry(ApiKey.ELECT_LEADERS, elect_leaders.handle, cancellable=True),
    message_entry(ApiKey.ALTER_PARTITION_REASSIGNMENTS, partition_reassignments.alter, cancellable=True),
    message_entry(ApiKey.DESCRIBE_QUORUM, describe_quorum.handle, cancellable=True),
    message_entry(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_groups.heartbeat, cancellable=True),
    message_entry(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_groups.describe, cancellable=True),
    message_entry(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, partition_reassignments.list_under_way, cancellable=True
    ),
    message_entry(ApiKey.UPDATE_FEATURES, update_features.handle),
    message_entry(ApiKey.DESCRIBE_CLUSTER, describe_cluster.handle, cancellable=True),
    message_entry(ApiKey.LIST_CONFIG_RESOURCES, list_config_resources.handle, cancellable=True),
    message_entry(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe_topic_partitions.handle, cancellable=True),
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
