"""What a principal with few rights sees of a cluster: bits of operations, filtered lists, mixed answers."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.rights import GROUP, ID, ON_GROUP, ON_ID, ON_TOPIC, TOPIC, Right, build

from tallystick.broker.authorizer.acl_index import format_operations
from tallystick.broker.authorizer.authorizer import (
    CLUSTER_RESOURCE,
    Operation,
    topic_resource,
    transactional_id_resource,
)
from tallystick.kernel.codes import ErrorCode as E
from tallystick.kernel.value import Value
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.primitives import NIL

Op, K = Operation, ApiKey
OTHER_TOPIC, OTHER_GROUP, OPEN_ID = "payments", "other", "open"
ON_OTHER_TOPIC, ON_OPEN_ID = topic_resource(OTHER_TOPIC), transactional_id_resource(OPEN_ID)
UNKNOWN_ID = uuid.UUID(int=77)
TopicIds = Mapping[str, uuid.UUID]
"""By the names of TOPIC and OTHER_TOPIC, which every broker gives ids of its own."""


class View(Value, kw_only=True):
    """One request of a principal with these rights.

    request   by the ids of the topics
    rights    all that the principal has
    pick      takes out of the answer what is compared with `expected`
    expected  by the ids of the topics
    """

    name: str
    version: int
    request: Callable[[TopicIds], object]
    rights: tuple[Right, ...] = ()
    pick: Callable[[Any], object]
    expected: Callable[[TopicIds], object]


def _always(value: object) -> Callable[[TopicIds], object]:
    return lambda _: value


def _plain(key: ApiKey, **content: Any) -> Callable[[TopicIds], object]:
    return lambda _: build(key, content)


def committed_at(*topics: str) -> list[dict[str, Any]]:
    """Return the topics of an OffsetCommit, each with one offset."""
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    return [{"name": name, "partitions": [part]} for name in topics]


def _names(entries: str, field: str = "name") -> Callable[[Any], object]:
    return lambda answer: sorted(getattr(each, field) for each in getattr(answer, entries))


_WITH_BITS = {"include_cluster_authorized_operations": True}
_SOME = ((Op.READ, ON_TOPIC), (Op.ALTER, CLUSTER_RESOURCE), (Op.DELETE, ON_GROUP))
_METADATA_BITS = _plain(
    K.METADATA, topics=[{"name": TOPIC}], include_topic_authorized_operations=True, **_WITH_BITS
)
_BITS = (
    View(
        name="bits-of-topic-and-cluster",
        version=9,
        request=_METADATA_BITS,
        rights=_SOME,
        pick=lambda answer: (
            answer.topics[0].topic_authorized_operations,
            answer.cluster_authorized_operations,
        ),
        expected=_always(
            (format_operations([Op.READ, Op.DESCRIBE]), format_operations([Op.ALTER, Op.DESCRIBE]))
        ),
    ),
    View(
        name="bits-of-every-operation",
        version=9,
        request=_METADATA_BITS,
        rights=((Op.ALL, ON_TOPIC), (Op.ALL, CLUSTER_RESOURCE)),
        pick=lambda answer: (
            answer.topics[0].topic_authorized_operations,
            answer.cluster_authorized_operations,
        ),
        expected=_always(
            (
                format_operations(
                    [
                        *(Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE),
                        *(Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS),
                    ]
                ),
                format_operations(
                    [
                        *(Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION),
                        *(Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE),
                    ]
                ),
            )
        ),
    ),
    View(
        name="bits-of-describe-cluster",
        version=0,
        request=_plain(K.DESCRIBE_CLUSTER, **_WITH_BITS),
        rights=_SOME,
        pick=lambda answer: (answer.error_code, answer.cluster_authorized_operations),
        expected=_always((E.NONE, format_operations([Op.ALTER, Op.DESCRIBE]))),
    ),
    View(
        name="no-bits-of-a-cluster-that-may-not-be-described",
        version=0,
        request=_plain(K.DESCRIBE_CLUSTER, **_WITH_BITS),
        rights=((Op.CREATE, CLUSTER_RESOURCE),),
        pick=lambda answer: (answer.error_code, answer.cluster_authorized_operations),
        expected=_always((E.NONE, 0)),
    ),
    View(
        name="bits-of-a-group",
        version=5,
        request=_plain(K.DESCRIBE_GROUPS, groups=[GROUP], include_authorized_operations=True),
        rights=_SOME,
        pick=lambda answer: [each.authorized_operations for each in answer.groups],
        expected=_always([format_operations([Op.DELETE, Op.DESCRIBE])]),
    ),
)
_LISTS = (
    View(
        name="metadata-of-all-topics",
        version=12,
        request=_plain(K.METADATA, topics=None),
        rights=((Op.DESCRIBE, ON_TOPIC),),
        pick=_names("topics"),
        expected=_always([TOPIC]),
    ),
    View(
        name="pages-of-all-topics",
        version=0,
        request=_plain(K.DESCRIBE_TOPIC_PARTITIONS, topics=[]),
        rights=((Op.DESCRIBE, ON_TOPIC),),
        pick=_names("topics"),
        expected=_always([TOPIC]),
    ),
    *(
        View(
            name=f"groups-{case}",
            version=4,
            request=_plain(K.LIST_GROUPS),
            rights=rights,
            pick=lambda answer: (answer.error_code, _names("groups", "group_id")(answer)),
            expected=_always((E.NONE, names)),
        )
        for case, rights, names in (
            ("none", (), []),
            ("one", ((Op.READ, ON_GROUP),), [GROUP]),
            ("all", ((Op.DESCRIBE, CLUSTER_RESOURCE),), [GROUP, OTHER_GROUP]),
        )
    ),
    *(
        View(
            name=f"transactions-{case}",
            version=0,
            request=_plain(K.LIST_TRANSACTIONS),
            rights=rights,
            pick=lambda answer: (answer.error_code, _names("transaction_states", "transactional_id")(answer)),
            expected=_always((E.NONE, ids)),
        )
        for case, rights, ids in (("none", (), []), ("one", ((Op.DESCRIBE, ON_ID),), [ID]))
    ),
    View(
        name="topics-of-a-transaction",
        version=0,
        request=_plain(K.DESCRIBE_TRANSACTIONS, transactional_ids=[OPEN_ID]),
        rights=((Op.DESCRIBE, ON_OPEN_ID), (Op.DESCRIBE, ON_TOPIC)),
        pick=lambda answer: [
            (each.error_code, [topic.topic for topic in each.topics]) for each in answer.transaction_states
        ],
        expected=_always([(E.NONE, [TOPIC])]),
    ),
    View(
        name="all-offsets-of-a-group",
        version=8,
        request=_plain(K.OFFSET_FETCH, groups=[{"group_id": GROUP, "topics": None}]),
        rights=((Op.DESCRIBE, ON_GROUP), (Op.DESCRIBE, ON_TOPIC)),
        pick=lambda answer: [
            (each.error_code, [topic.name for topic in each.topics]) for each in answer.groups
        ],
        expected=_always([(E.NONE, [TOPIC])]),
    ),
    View(
        name="log-directories-before-there-was-a-code",
        version=1,
        request=_plain(K.DESCRIBE_LOG_DIRS, topics=None),
        pick=lambda answer: answer.results,
        expected=_always(()),
    ),
)
_MIXED = (
    View(
        name="partitions-of-a-transaction-are-all-or-none",
        version=3,
        request=_plain(
            K.ADD_PARTITIONS_TO_TXN,
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=0,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=[{"name": name, "partitions": [0]} for name in (TOPIC, OTHER_TOPIC)],
        ),
        rights=((Op.WRITE, ON_ID), (Op.WRITE, ON_OTHER_TOPIC)),
        pick=lambda answer: {
            topic.name: [part.partition_error_code for part in topic.results_by_partition]
            for topic in answer.results_by_topic_v3_and_below
        },
        expected=_always({TOPIC: [E.TOPIC_AUTHORIZATION_FAILED], OTHER_TOPIC: [E.OPERATION_NOT_ATTEMPTED]}),
    ),
    View(
        name="offsets-of-the-other-topics-are-committed",
        version=8,
        request=_plain(
            K.OFFSET_COMMIT, group_id=GROUP, member_id="", topics=committed_at(TOPIC, OTHER_TOPIC)
        ),
        rights=((Op.READ, ON_GROUP), (Op.READ, ON_OTHER_TOPIC)),
        pick=lambda answer: {
            topic.name: [part.error_code for part in topic.partitions] for topic in answer.topics
        },
        expected=_always({TOPIC: [E.TOPIC_AUTHORIZATION_FAILED], OTHER_TOPIC: [E.NONE]}),
    ),
    *(
        View(
            name=f"topics-are-not-created-{case}",
            version=9,
            request=_plain(K.METADATA, topics=[{"name": "new"}], allow_auto_topic_creation=True),
            rights=rights,
            pick=lambda answer: [topic.error_code for topic in answer.topics],
            expected=_always([E.TOPIC_AUTHORIZATION_FAILED]),
        )
        for case, rights in (
            ("by-strangers", ()),
            ("without-describe", ((Op.CREATE, CLUSTER_RESOURCE),)),
            ("without-create", ((Op.DESCRIBE, topic_resource("new")),)),
        )
    ),
)


def _delete_by_id(ids: TopicIds) -> object:
    topics = [{"name": None, "topic_id": str(ids[TOPIC])}]
    return build(K.DELETE_TOPICS, {"topics": topics, "timeout_ms": 1_000})


def _pick_deletions(answer: Any) -> object:
    return [(each.error_code, each.name, each.topic_id) for each in answer.responses]


def _fetch_by_id(topic_id: uuid.UUID) -> object:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}
    topics = [{"topic_id": str(topic_id), "partitions": [part]}]
    return build(K.FETCH, {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "topics": topics})


def _pick_metadata(answer: Any) -> object:
    return [
        (each.error_code, each.name, each.topic_id, each.is_internal, each.partitions)
        for each in answer.topics
    ]


_DENIED = E.TOPIC_AUTHORIZATION_FAILED
_IDS = (
    View(
        name="metadata-by-name-hides-the-id",
        version=12,
        request=_plain(K.METADATA, topics=[{"name": TOPIC}]),
        pick=_pick_metadata,
        expected=_always([(_DENIED, TOPIC, NIL, False, ())]),
    ),
    View(
        name="metadata-by-id-hides-the-name",
        version=12,
        request=lambda ids: build(K.METADATA, {"topics": [{"topic_id": str(ids[TOPIC]), "name": None}]}),
        pick=_pick_metadata,
        expected=lambda ids: [(_DENIED, None, ids[TOPIC], False, ())],
    ),
    View(
        name="deletion-by-id-hides-the-name",
        version=6,
        request=_delete_by_id,
        rights=((Op.CREATE, ON_TOPIC),),
        pick=_pick_deletions,
        expected=lambda ids: [(_DENIED, None, ids[TOPIC])],
    ),
    View(
        name="deletion-by-id-of-what-may-be-described",
        version=6,
        request=_delete_by_id,
        rights=((Op.DESCRIBE, ON_TOPIC),),
        pick=_pick_deletions,
        expected=lambda ids: [(_DENIED, TOPIC, ids[TOPIC])],
    ),
    *(
        View(
            name=f"fetch-by-id-{case}",
            version=13,
            request=request,
            pick=lambda answer: [part.error_code for topic in answer.responses for part in topic.partitions],
            expected=_always([code]),
        )
        for case, request, code in (
            ("of-a-topic", lambda ids: _fetch_by_id(ids[TOPIC]), _DENIED),
            ("of-no-topic", lambda ids: _fetch_by_id(UNKNOWN_ID), E.UNKNOWN_TOPIC_ID),
        )
    ),
)

VIEWS = (*_BITS, *_LISTS, *_MIXED, *_IDS)
