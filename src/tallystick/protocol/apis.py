"""The registry of all APIs: their versions, messages and header versions.

ApiVersions advertises the APIs of this table that have a handler. The server dispatches on the same table,
so the two cannot disagree.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from tallystick.kernel.check import check
from tallystick.kernel.value import Value
from tallystick.protocol.messages.cluster.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from tallystick.protocol.messages.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tallystick.protocol.messages.cluster.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tallystick.protocol.messages.cluster.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tallystick.protocol.messages.cluster.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from tallystick.protocol.messages.cluster.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tallystick.protocol.messages.cluster.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tallystick.protocol.messages.cluster.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tallystick.protocol.messages.cluster.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tallystick.protocol.messages.cluster.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from tallystick.protocol.messages.data.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tallystick.protocol.messages.data.fetch import FetchRequest, FetchResponse
from tallystick.protocol.messages.data.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tallystick.protocol.messages.data.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from tallystick.protocol.messages.data.produce import ProduceRequest, ProduceResponse
from tallystick.protocol.messages.groups.administration import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tallystick.protocol.messages.groups.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tallystick.protocol.messages.groups.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tallystick.protocol.messages.groups.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tallystick.protocol.messages.groups.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tallystick.protocol.messages.groups.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tallystick.protocol.messages.groups.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tallystick.protocol.messages.security.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from tallystick.protocol.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tallystick.protocol.messages.security.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tallystick.protocol.messages.topics.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tallystick.protocol.messages.topics.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from tallystick.protocol.messages.topics.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tallystick.protocol.messages.topics.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tallystick.protocol.messages.topics.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tallystick.protocol.messages.topics.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tallystick.protocol.messages.topics.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tallystick.protocol.messages.topics.metadata import MetadataRequest, MetadataResponse
from tallystick.protocol.messages.topics.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tallystick.protocol.messages.txn.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from tallystick.protocol.messages.txn.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from tallystick.protocol.messages.txn.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from tallystick.protocol.messages.txn.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tallystick.protocol.messages.txn.end_txn import EndTxnRequest, EndTxnResponse
from tallystick.protocol.messages.txn.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tallystick.protocol.messages.txn.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tallystick.protocol.messages.txn.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tallystick.protocol.messages.txn.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tallystick.protocol.wire import Versions, get_message_spec


class ApiKey(IntEnum):
    """Kafka's number of an API."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class ApiSpec(Value, kw_only=True):
    """One API: its messages, supported versions, and first flexible version."""

    key: ApiKey
    name: str
    request: type
    response: type
    min_version: int
    max_version: int
    flexible_since: int | None

    def __contains__(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return self.flexible_since is not None and version >= self.flexible_since

    def get_request_header_version(self, version: int) -> int:
        """Return 2 for flexible versions, else 1. Also right for versions newer than ours."""
        return 2 if self.is_flexible(version) else 1

    def get_response_header_version(self, version: int) -> int:
        """Return 1 for flexible versions, else 0; always 0 for ApiVersions [WIRE-3].

        KIP-511: a client that does not know the broker's versions yet must be able to read the response to an
        unsupported version, which the broker sends in version 0.
        """
        return 1 if self.is_flexible(version) and self.key is not ApiKey.API_VERSIONS else 0

    @property
    def advertised(self) -> Versions:
        """The range that ApiVersions advertises.

        Produce is advertised from 0 although 0 to 2 are refused: librdkafka before 2.4 derives the broker's
        compression codecs from that range (KAFKA-18659).
        """
        first = 0 if self.key is ApiKey.PRODUCE else self.min_version
        return Versions(first, self.max_version)


def _make_spec(request: type, response: type) -> ApiSpec:
    request_spec, response_spec = get_message_spec(request), get_message_spec(response)
    name = request.__name__.removesuffix("Request")
    check(response.__name__ == f"{name}Response", f"{name}: paired with {response.__name__}")
    for attribute in ("api_key", "versions", "flexible"):
        check(
            getattr(request_spec, attribute) == getattr(response_spec, attribute),
            f"{name}: two different values of {attribute}",
        )
    last = request_spec.versions.last
    if request_spec.api_key is None or last is None:
        raise TypeError(f"{name}: a request has a key and a last version")
    return ApiSpec(
        key=ApiKey(request_spec.api_key),
        name=name,
        request=request,
        response=response,
        min_version=request_spec.versions.first,
        max_version=last,
        flexible_since=request_spec.flexible.first if request_spec.flexible.last is None else None,
    )


_SPECS: Final = (
    _make_spec(ProduceRequest, ProduceResponse),
    _make_spec(FetchRequest, FetchResponse),
    _make_spec(ListOffsetsRequest, ListOffsetsResponse),
    _make_spec(MetadataRequest, MetadataResponse),
    _make_spec(OffsetCommitRequest, OffsetCommitResponse),
    _make_spec(OffsetFetchRequest, OffsetFetchResponse),
    _make_spec(FindCoordinatorRequest, FindCoordinatorResponse),
    _make_spec(JoinGroupRequest, JoinGroupResponse),
    _make_spec(HeartbeatRequest, HeartbeatResponse),
    _make_spec(LeaveGroupRequest, LeaveGroupResponse),
    _make_spec(SyncGroupRequest, SyncGroupResponse),
    _make_spec(DescribeGroupsRequest, DescribeGroupsResponse),
    _make_spec(ListGroupsRequest, ListGroupsResponse),
    _make_spec(SaslHandshakeRequest, SaslHandshakeResponse),
    _make_spec(ApiVersionsRequest, ApiVersionsResponse),
    _make_spec(CreateTopicsRequest, CreateTopicsResponse),
    _make_spec(DeleteTopicsRequest, DeleteTopicsResponse),
    _make_spec(DeleteRecordsRequest, DeleteRecordsResponse),
    _make_spec(InitProducerIdRequest, InitProducerIdResponse),
    _make_spec(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    _make_spec(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
    _make_spec(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
    _make_spec(EndTxnRequest, EndTxnResponse),
    _make_spec(WriteTxnMarkersRequest, WriteTxnMarkersResponse),
    _make_spec(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
    _make_spec(DescribeAclsRequest, DescribeAclsResponse),
    _make_spec(CreateAclsRequest, CreateAclsResponse),
    _make_spec(DeleteAclsRequest, DeleteAclsResponse),
    _make_spec(DescribeConfigsRequest, DescribeConfigsResponse),
    _make_spec(AlterConfigsRequest, AlterConfigsResponse),
    _make_spec(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
    _make_spec(DescribeLogDirsRequest, DescribeLogDirsResponse),
    _make_spec(SaslAuthenticateRequest, SaslAuthenticateResponse),
    _make_spec(CreatePartitionsRequest, CreatePartitionsResponse),
    _make_spec(DeleteGroupsRequest, DeleteGroupsResponse),
    _make_spec(ElectLeadersRequest, ElectLeadersResponse),
    _make_spec(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
    _make_spec(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
    _make_spec(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
    _make_spec(OffsetDeleteRequest, OffsetDeleteResponse),
    _make_spec(DescribeClientQuotasRequest, DescribeClientQuotasResponse),
    _make_spec(AlterClientQuotasRequest, AlterClientQuotasResponse),
    _make_spec(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
    _make_spec(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
    _make_spec(DescribeQuorumRequest, DescribeQuorumResponse),
    _make_spec(UpdateFeaturesRequest, UpdateFeaturesResponse),
    _make_spec(DescribeClusterRequest, DescribeClusterResponse),
    _make_spec(DescribeProducersRequest, DescribeProducersResponse),
    _make_spec(DescribeTransactionsRequest, DescribeTransactionsResponse),
    _make_spec(ListTransactionsRequest, ListTransactionsResponse),
    _make_spec(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    _make_spec(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
    _make_spec(ListConfigResourcesRequest, ListConfigResourcesResponse),
    _make_spec(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
)

API_SPECS: Final[Mapping[ApiKey, ApiSpec]] = MappingProxyType({spec.key: spec for spec in _SPECS})

check(set(API_SPECS) == set(ApiKey) and len(API_SPECS) == len(_SPECS), "every ApiKey has one row")
