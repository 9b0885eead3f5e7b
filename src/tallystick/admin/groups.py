"""Consumer groups and their offsets: list, describe, delete, and move offsets of groups without members.

Offsets are changed by an OffsetCommit without a membership: the coordinator refuses it while the group has
members (UNKNOWN_MEMBER_ID), so a running consumer never loses its position.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tallystick.admin.admin_call import AdminCall, Answers, gather_answers, group_by_topic
from tallystick.admin.model import GroupDescription, GroupListing, GroupOffsets, MemberDescription
from tallystick.client.consumer.assignors.subscription import decode_assignment
from tallystick.client.errors import BrokerRefused, ClientError, NotSupported, build_broker_error
from tallystick.client.offsets import (
    OFFSET_COMMIT_VERSION_MAX,
    OFFSET_FETCH_VERSION_MAX,
    GroupMetadata,
    OffsetAndMetadata,
    build_offset_commit_request,
    parse_offset_commit_errors,
    parse_offset_fetch_response,
    split_offset_fetch_response,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import TopicPartition
from tallystick.kernel.value import replace
from tallystick.protocol import DecodeError
from tallystick.protocol.apis import ApiKey
from tallystick.protocol.messages.groups import consumer_group_describe as cgd
from tallystick.protocol.messages.groups import offset_delete as od
from tallystick.protocol.messages.groups.administration import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tallystick.protocol.messages.groups.offset_commit import OffsetCommitResponse
from tallystick.protocol.messages.groups.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

GROUPS_VERSION: Final = 8
NAMED_TOPICS_VERSION_MAX: Final = 9


async def list_all(
    call: AdminCall, *, states: Collection[str], types: Collection[str]
) -> Answers[int, tuple[GroupListing, ...]]:
    request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))

    async def ask(node_id: int) -> tuple[GroupListing, ...]:
        answer = await call.send_to_broker(node_id, request, ListGroupsResponse, lambda a: a.error_code)
        return tuple(
            GroupListing(
                group_id=each.group_id,
                coordinator=node_id,
                protocol_type=each.protocol_type,
                state=each.group_state,
                type=each.group_type,
            )
            for each in answer.groups
        )

    return await gather_answers(await call.list_brokers(), ask)


async def describe(call: AdminCall, group_ids: Iterable[str]) -> Answers[str, GroupDescription]:
    """Describe groups, in as few requests to each coordinator as possible."""

    async def ask(node_id: int, some: Sequence[str]) -> Mapping[str, GroupDescription | ClientError]:
        answers = await _describe_consumer_groups(call, node_id, some)
        others = [name for name in some if name not in answers]
        return {**answers, **(await _describe_classic_groups(call, node_id, others) if others else {})}

    return await call.send_to_coordinators("group", group_ids, ask, "DescribeGroups")


async def _describe_consumer_groups(
    call: AdminCall, node_id: int, names: Sequence[str]
) -> dict[str, GroupDescription | ClientError]:
    """Describe groups of the consumer protocol (KIP-848); leave out those that may be classic ones."""
    request = cgd.ConsumerGroupDescribeRequest(group_ids=tuple(names), include_authorized_operations=False)
    try:
        answer = await call.cluster.send(node_id, request, cgd.ConsumerGroupDescribeResponse)
    except NotSupported:
        return {}
    return {
        each.group_id: build_broker_error("ConsumerGroupDescribe", each.group_id, each.error_code)
        if each.error_code
        else _to_consumer_group(node_id, each)
        for each in answer.groups
        if each.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
    }


def _to_consumer_group(node_id: int, group: cgd.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        coordinator=node_id,
        state=group.group_state,
        type="consumer",
        assignor=group.assignor_name,
        members=tuple(
            MemberDescription(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=frozenset(
                    TopicPartition(topic.topic_name, index)
                    for topic in each.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for each in group.members
        ),
    )


async def _describe_classic_groups(
    call: AdminCall, node_id: int, names: Sequence[str]
) -> dict[str, GroupDescription | ClientError]:
    """Describe classic groups.

    An unknown group fails at every version (KIP-1043); up to version 5 the coordinator reports it as Dead,
    without an error.
    """
    request = DescribeGroupsRequest(groups=tuple(names))
    answer = await call.cluster.send(node_id, request, DescribeGroupsResponse)
    answers: dict[str, GroupDescription | ClientError] = {}
    for each in answer.groups:
        is_unknown = not each.error_code and each.group_state == "Dead"
        code = ErrorCode.GROUP_ID_NOT_FOUND if is_unknown else each.error_code
        if code:
            answers[each.group_id] = build_broker_error("DescribeGroups", each.group_id, code)
        else:
            answers[each.group_id] = _to_classic_group(node_id, each)
    return answers


def _to_classic_group(node_id: int, group: DescribedGroup) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        coordinator=node_id,
        state=group.group_state,
        type="classic",
        assignor=group.protocol_data,
        members=tuple(
            MemberDescription(
                member_id=each.member_id,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                host=each.client_host,
                partitions=_decode_assigned(each.member_assignment)
                if group.protocol_type == "consumer"
                else frozenset(),
            )
            for each in group.members
        ),
    )


def _decode_assigned(data: bytes) -> frozenset[TopicPartition]:
    """Decode a member's assigned partitions; bytes that cannot be decoded count as none."""
    try:
        return frozenset(decode_assignment(data))
    except DecodeError:
        return frozenset()


def _single_code(codes: list[int]) -> int:
    return codes[0] if len(codes) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR


async def delete(call: AdminCall, group_ids: Iterable[str]) -> Answers[str, None]:
    async def one(name: str) -> None:
        request = DeleteGroupsRequest(groups_names=(name,))
        await call.send_to_coordinator(
            "group",
            name,
            request,
            DeleteGroupsResponse,
            lambda a: _single_code([e.error_code for e in a.results]),
        )

    return await gather_answers(group_ids, one)


# ------------------------------------------------------------------------------------ offsets


async def list_offsets(
    call: AdminCall, group_id: str, *, require_stable: bool
) -> Mapping[TopicPartition, OffsetAndMetadata]:
    request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=require_stable)

    async def attempt() -> Mapping[TopicPartition, OffsetAndMetadata]:
        node = await call.cluster.find_coordinator("group", group_id)
        answer = await call.cluster.send(
            node, request, OffsetFetchResponse, max_version=OFFSET_FETCH_VERSION_MAX
        )
        offsets = parse_offset_fetch_response(answer, group_id)
        return {at: offset for at, offset in offsets.items() if offset is not None}

    return await call.cluster.run_with_retries("OffsetFetch", group_id, attempt, call.deadline)


async def describe_offsets(call: AdminCall, group_ids: Iterable[str]) -> Answers[str, GroupOffsets]:
    """Read the committed offsets of groups, and which wait for a transaction (KIP-447)."""
    stable = await _fetch_offsets(call, group_ids, require_stable=True)
    waiting = [name for name, each in stable.found.items() if each.pending]
    if not waiting:
        return stable
    present = await _fetch_offsets(call, waiting, require_stable=False)
    descriptions = {
        name: each if name not in present.found else replace(present.found[name], pending=each.pending)
        for name, each in stable.found.items()
        if name not in present.failures
    }
    return Answers(descriptions, {**stable.failures, **present.failures})


async def _fetch_offsets(
    call: AdminCall, group_ids: Iterable[str], *, require_stable: bool
) -> Answers[str, GroupOffsets]:
    async def ask(node_id: int, some: Sequence[str]) -> Mapping[str, GroupOffsets | ClientError]:
        versions = await call.cluster.wait_for_versions(node_id)
        version = versions.find_latest_usable(ApiKey.OFFSET_FETCH)
        # KIP-709: several groups in one request. Version 10 names topics by id.
        requests = (
            [OffsetFetchRequest(group_id=name, topics=None, require_stable=require_stable) for name in some]
            if version is not None and version < GROUPS_VERSION
            else [
                OffsetFetchRequest(
                    groups=tuple(OffsetFetchRequestGroup(group_id=name, topics=None) for name in some),
                    require_stable=require_stable,
                )
            ]
        )
        answers: dict[str, GroupOffsets | ClientError] = {}
        for request in requests:
            answer = await call.cluster.send(
                node_id, request, OffsetFetchResponse, max_version=NAMED_TOPICS_VERSION_MAX
            )
            if not request.groups:
                answers[request.group_id] = _to_group_offsets(request.group_id, answer)
            for each in answer.groups:
                answers[each.group_id] = _to_group_offsets(each.group_id, each)
        return answers

    return await call.send_to_coordinators("group", group_ids, ask, "OffsetFetch")


def _to_group_offsets(
    name: str, answer: OffsetFetchResponse | OffsetFetchResponseGroup
) -> GroupOffsets | ClientError:
    """Return a group's offsets, or the first error but that of offsets that wait for a transaction."""
    try:
        offsets, errors = split_offset_fetch_response(answer, name)
    except BrokerRefused as exc:
        return exc
    pending = {at for at, why in errors.items() if why.code == ErrorCode.UNSTABLE_OFFSET_COMMIT}
    for at, failure in errors.items():
        if at not in pending:
            return failure
    committed = {at: each for at, each in offsets.items() if each is not None}
    return GroupOffsets(committed=committed, pending=frozenset(pending))


async def alter_offsets(
    call: AdminCall, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Answers[TopicPartition, None]:
    async def ask(some: Sequence[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        node = await _find_coordinator(call, group_id)
        request = build_offset_commit_request(
            GroupMetadata(group_id=group_id), {at: offsets[at] for at in some}
        )
        answer = await call.cluster.send(
            node, request, OffsetCommitResponse, max_version=OFFSET_COMMIT_VERSION_MAX
        )
        refusals = parse_offset_commit_errors(answer)
        return {at: _forget_if_retriable(call, group_id, refusals.get(at)) for at in some}

    return await call.send_with_retries("OffsetCommit", offsets, ask)


async def delete_offsets(
    call: AdminCall, group_id: str, partitions: Iterable[TopicPartition]
) -> Answers[TopicPartition, None]:
    async def ask(some: Sequence[TopicPartition]) -> dict[TopicPartition, ClientError | None]:
        node = await _find_coordinator(call, group_id)
        request = od.OffsetDeleteRequest(
            group_id=group_id,
            topics=tuple(
                od.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=tuple(od.OffsetDeleteRequestPartition(partition_index=i) for i in indexes),
                )
                for name, indexes in group_by_topic(some).items()
            ),
        )
        answer = await call.cluster.send(node, request, od.OffsetDeleteResponse)
        if answer.error_code:
            failure = build_broker_error("OffsetDelete", group_id, answer.error_code)
            _forget_if_retriable(call, group_id, failure)
            raise failure
        return {
            at: build_broker_error("OffsetDelete", at, p.error_code) if p.error_code else None
            for t in answer.topics
            for p in t.partitions
            for at in (TopicPartition(t.name, p.partition_index),)
        }

    return await call.send_with_retries("OffsetDelete", partitions, ask)


async def _find_coordinator(call: AdminCall, group_id: str) -> int:
    return await call.cluster.find_coordinator("group", group_id)


def _forget_if_retriable(
    call: AdminCall, group_id: str, failure: BrokerRefused | None
) -> BrokerRefused | None:
    """Forget the group's coordinator after a failure worth repeating, and return the failure.

    `AdminCall.send_with_retries` covers many keys, so it cannot look the coordinator up again by itself.
    """
    if failure is not None and failure.remedy.repeats:
        call.cluster.forget_coordinator("group", group_id)
    return failure
