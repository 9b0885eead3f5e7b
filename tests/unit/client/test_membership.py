"""A member of a group: against answers at random, and several of them against a plain coordinator."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.assignors import topics_without_racks
from tests.support.effort import examples

from tallystick.client.consumer.assignors.assign import ASSIGNORS
from tallystick.client.consumer.assignors.subscription import decode_subscription, encode_assignment
from tallystick.client.consumer.membership import (
    NO_MEMBER_ID,
    REACTIONS,
    AssignmentChange,
    ErrorReaction,
    GroupRebalanceConfig,
    Membership,
    Phase,
    apply_error,
    apply_join_response,
    apply_sync_response,
    begin_join,
    build_heartbeat_request,
    build_join_request,
    build_leave_request,
    classify_error,
    collect_group_topics,
    drop_partitions,
    expire_member,
    handle_missing_response,
    leave,
    perform_assignment,
    plan_assignment_change,
    plan_revocation,
    rejoin_if_topics_changed,
    subscribe,
    take_over_assignment,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId, TopicPartition
from tallystick.protocol import encode
from tallystick.protocol.messages.groups.membership import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

TOPICS = {"t": 3, "u": 2}
ALL = frozenset(TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count))


def group(*assignors: str, instance_id: str | None = None) -> GroupRebalanceConfig:
    return GroupRebalanceConfig(
        group_id=GroupId("g"),
        instance_id=instance_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        assignors=tuple(ASSIGNORS[name] for name in assignors),
    )


EAGER, COOPERATIVE = group("range"), group("cooperative-sticky")


def join_answer(member_id: str = "m", generation: int = 1, leader: str = "l") -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=generation,
        protocol_type="consumer",
        protocol_name="range",
        leader=leader,
        member_id=member_id,
    )


def sync_answer(*partitions: TopicPartition) -> SyncGroupResponse:
    return SyncGroupResponse(assignment=encode_assignment(partitions))


def callbacks(member: Membership, group_settings: GroupRebalanceConfig) -> Membership:
    """What `poll` does: run the callbacks of the phase until there are none left."""
    while True:
        if member.phase is Phase.PREPARING:
            change = plan_revocation(member, group_settings)
            if not change.has_removals:
                return begin_join(member)
        elif member.phase is Phase.SETTLING:
            change = plan_assignment_change(member)
            if not change.has_removals:
                return take_over_assignment(member)
        else:
            return member
        member = drop_partitions(member, change)


def stable(*partitions: TopicPartition, settings_: GroupRebalanceConfig = EAGER) -> Membership:
    member = callbacks(subscribe(Membership(), frozenset(TOPICS)), settings_)
    return callbacks(
        apply_sync_response(apply_join_response(member, join_answer()), sync_answer(*partitions)), settings_
    )


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_an_eager_member_gives_up_everything_before_it_joins() -> None:
    member = apply_error(stable(T0, T1), "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1)
    assert member.phase is Phase.PREPARING
    assert plan_revocation(member, EAGER) == AssignmentChange(revoked=frozenset({T0, T1}))
    assert callbacks(member, EAGER).owned_partitions == frozenset()


def test_a_cooperative_member_keeps_what_it_has_until_it_is_told_otherwise() -> None:
    """KIP-429: give up after the assignment, then join again."""
    member = stable(T0, T1, settings_=COOPERATIVE)
    member = apply_error(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1)
    assert not plan_revocation(member, COOPERATIVE).has_removals
    member = apply_sync_response(
        apply_join_response(begin_join(member), join_answer(generation=2)), sync_answer(T0, U0)
    )
    assert plan_assignment_change(member) == AssignmentChange(revoked=frozenset({T1}), added=frozenset({U0}))
    member = callbacks(member, COOPERATIVE)
    assert member.owned_partitions == {T0, U0}
    assert member.phase is Phase.PREPARING, "and again, so that somebody else can have t-1"


def test_a_cooperative_member_gives_up_topics_it_no_longer_wants_before_it_joins() -> None:
    member = subscribe(stable(T0, U0, settings_=COOPERATIVE), frozenset({"t"}))
    assert plan_revocation(member, COOPERATIVE) == AssignmentChange(revoked=frozenset({U0}))


@pytest.mark.parametrize("settings_", [EAGER, COOPERATIVE])
def test_without_a_generation_partitions_are_lost_and_not_given_up(settings_: GroupRebalanceConfig) -> None:
    member = stable(T0, settings_=settings_)
    gone = apply_error(member, "Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID, generation=1)
    assert plan_revocation(gone, settings_) == AssignmentChange(lost=frozenset({T0}))
    assert gone.member_id == NO_MEMBER_ID
    behind = apply_error(member, "Heartbeat", ErrorCode.ILLEGAL_GENERATION, generation=1)
    assert behind.member_id == "m", "the id still holds"
    assert expire_member(member).generation is None, "KIP-62: no poll for max.poll.interval.ms"
    assert leave(behind)[1] == AssignmentChange(lost=frozenset({T0}))
    assert leave(member)[1] == AssignmentChange(revoked=frozenset({T0}))


def test_what_a_later_generation_made_obsolete_is_no_news() -> None:
    member = stable(T0)
    assert apply_error(member, "Heartbeat", ErrorCode.ILLEGAL_GENERATION, generation=0) == member
    joining = begin_join(apply_error(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1))
    assert apply_error(joining, "OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID, generation=1) == joining


def test_a_member_id_is_given_first() -> None:
    """KIP-394."""
    member = callbacks(subscribe(Membership(), frozenset({"t"})), EAGER)
    told = apply_error(member, "JoinGroup", ErrorCode.MEMBER_ID_REQUIRED, generation=None, member_id="m-1")
    assert told.phase is Phase.JOINING
    assert build_join_request(told, EAGER).member_id == "m-1"


def test_a_fenced_static_member_fails() -> None:
    """KIP-345: another one came under the same instance id."""
    member = apply_error(stable(T0), "Heartbeat", ErrorCode.FENCED_INSTANCE_ID, generation=1)
    assert member.phase is Phase.FAILED
    assert member.failure == ("Heartbeat", ErrorCode.FENCED_INSTANCE_ID)
    assert leave(member)[1] == AssignmentChange(lost=frozenset({T0})), "the other one reads it"


def test_static_members_do_not_leave() -> None:
    assert build_leave_request(stable(T0), group("range", instance_id="i"), "closing") is None
    assert build_leave_request(Membership(), EAGER, "never joined") is None
    request = build_leave_request(stable(T0), EAGER, "x" * 999)
    assert request is not None
    assert len(request.members[0].reason or "") == 255


def test_an_assignment_of_topics_no_longer_wanted_is_not_taken_over() -> None:
    member = begin_join(subscribe(Membership(), frozenset({"t", "u"})))
    member = subscribe(apply_join_response(member, join_answer()), frozenset({"t"}))
    assert apply_sync_response(member, sync_answer(T0, U0)).phase is Phase.PREPARING
    assert callbacks(apply_sync_response(member, sync_answer(T0)), EAGER).phase is Phase.PREPARING, (
        "it joined for both"
    )


def test_one_eager_assignor_makes_a_member_eager() -> None:
    assert not group("range", "cooperative-sticky").is_cooperative
    assert group("cooperative-sticky").is_cooperative


def test_the_leader_looks_for_new_partitions() -> None:
    member = callbacks(subscribe(Membership(), frozenset({"t"})), EAGER)
    metadata = build_join_request(member, EAGER).protocols[0].metadata
    answer = JoinGroupResponse(
        generation_id=1,
        protocol_name="range",
        leader="m",
        member_id="m",
        members=(JoinGroupResponseMember(member_id="m", metadata=metadata),),
    )
    member = apply_join_response(member, answer)
    assert collect_group_topics(member) == {"t"}
    member, request = perform_assignment(member, EAGER, topics_without_racks({"t": 1}))
    assert request.assignments[0].assignment == encode_assignment([T0])
    member = callbacks(apply_sync_response(member, sync_answer(T0)), EAGER)
    assert rejoin_if_topics_changed(member, topics_without_racks({"t": 1})).phase is Phase.STABLE
    assert rejoin_if_topics_changed(member, topics_without_racks({"t": 2})).phase is Phase.PREPARING


def test_a_static_leader_that_returns_assigns_nothing_and_watches_all_the_same() -> None:
    """KIP-814."""
    member = callbacks(subscribe(Membership(), frozenset({"t"})), EAGER)
    metadata = build_join_request(member, EAGER).protocols[0].metadata
    answer = JoinGroupResponse(
        generation_id=4,
        protocol_name="range",
        leader="m",
        member_id="m",
        skip_assignment=True,
        members=(JoinGroupResponseMember(member_id="m", metadata=metadata),),
    )
    member = apply_join_response(member, answer)
    assert collect_group_topics(member) == {"t"}
    member, request = perform_assignment(member, EAGER, topics_without_racks({"t": 1}))
    assert request.assignments == ()
    assert member.assignment_snapshot == topics_without_racks({"t": 1})


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"])
def test_every_code_has_a_reaction(api: str) -> None:
    assert classify_error(api, 9999) is ErrorReaction.FAIL
    for code in ErrorCode:
        assert (api, code) not in REACTIONS or classify_error(api, code) is REACTIONS[api, code]
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert classify_error(api, code) is ErrorReaction.FIND_COORDINATOR
    for code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        assert classify_error(api, code) is ErrorReaction.FAIL


# ------------------------------------------------------------------- answers at random

CODES = st.sampled_from([*ErrorCode]).map(int)


class AnyAnswers(RuleBasedStateMachine):
    """One member, told anything at any time."""

    @initialize(cooperative=st.booleans())
    def begin(self, cooperative: bool) -> None:
        self.settings = COOPERATIVE if cooperative else EAGER
        self.member = Membership()
        self.generation = 0
        self.reading: frozenset[TopicPartition] = frozenset()

    @rule(topics=st.sets(st.sampled_from(["t", "u"])))
    def subscribe(self, topics: set[str]) -> None:
        self.member = subscribe(self.member, frozenset(topics))

    @rule()
    def poll(self) -> None:
        """[CLI-32] What is read changes here alone."""
        before = self.member.phase
        self.member = callbacks(self.member, self.settings)
        self.reading = self.member.owned_partitions
        assert before is not Phase.PREPARING or self.member.phase is Phase.JOINING

    @rule()
    def leave(self) -> None:
        self.member, change = leave(self.member)
        assert change.revoked | change.lost == self.reading
        self.reading = frozenset()

    @precondition(lambda self: self.member.phase is Phase.JOINING)
    @rule(leads=st.booleans())
    def join(self, leads: bool) -> None:
        encode(build_join_request(self.member, self.settings), 9)
        self.generation += 1
        self.member = apply_join_response(
            self.member, join_answer("m", self.generation, "m" if leads else "l")
        )

    @precondition(lambda self: self.member.phase is Phase.SYNCING)
    @rule(partitions=st.sets(st.sampled_from(sorted(ALL))))
    def sync(self, partitions: set[TopicPartition]) -> None:
        _, request = perform_assignment(self.member, self.settings, topics_without_racks(TOPICS))
        encode(request, 5)
        self.member = apply_sync_response(self.member, sync_answer(*partitions))

    @rule(partitions=st.sets(st.sampled_from(sorted(ALL)), min_size=1))
    def rebalance(self, partitions: set[TopicPartition]) -> None:
        """A join without a refusal, up to the assignment: single steps seldom come so far."""
        self.poll()
        if self.member.phase is Phase.JOINING:
            self.join(leads=False)
        if self.member.phase is Phase.SYNCING:
            self.sync(partitions)

    @rule(code=CODES, stale=st.booleans())
    def refuse(self, code: int, stale: bool) -> None:
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(self.member.phase, "Heartbeat")
        generation = -5 if stale else self.member.generation
        self.member = apply_error(self.member, api, code, generation=generation, member_id="given")

    @rule()
    def lose_the_connection(self) -> None:
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(self.member.phase, "Heartbeat")
        self.member = handle_missing_response(self.member, api)

    @rule()
    def be_late(self) -> None:
        self.member = expire_member(self.member)

    @invariant()
    def nothing_is_read_or_given_up_behind_the_users_back(self) -> None:
        assert self.member.owned_partitions == self.reading

    @invariant()
    def an_eager_member_joins_with_nothing(self) -> None:
        if self.member.phase in (Phase.JOINING, Phase.SYNCING) and not self.settings.is_cooperative:
            assert not self.member.owned_partitions

    @invariant()
    def who_beats_has_a_generation(self) -> None:
        if self.member.needs_heartbeats:
            encode(build_heartbeat_request(self.member, self.settings), 4)
            assert self.member.generation is not None

    @invariant()
    def without_a_generation_everything_is_lost_first(self) -> None:
        member = self.member
        if member.phase is Phase.PREPARING and member.generation is None:
            assert plan_revocation(member, self.settings) == AssignmentChange(lost=member.owned_partitions)

    @invariant()
    def good_answers_make_it_stable(self) -> None:
        """From wherever it is."""
        member = self.member
        if member.phase in (Phase.OUT, Phase.FAILED):
            return
        for _ in range(12):
            member = callbacks(member, self.settings)
            if member.phase is Phase.STABLE:
                return
            if member.phase is Phase.JOINING:
                member = apply_join_response(member, join_answer("m", self.generation + 1))
            if member.phase is Phase.SYNCING:
                member = apply_sync_response(
                    member, sync_answer(*(p for p in ALL if p.topic in member.topics))
                )
        raise AssertionError(member)


TestAnyAnswers = AnyAnswers.TestCase
TestAnyAnswers.settings = settings(max_examples=examples(quick=20, gate=20, full=60), stateful_step_count=40)


# ------------------------------------------------------------- several, and a coordinator


@dataclass
class Coordinator:
    """Waits for everybody, asks the first one for the assignment."""

    settings: GroupRebalanceConfig
    members: dict[str, Membership] = field(default_factory=dict)
    generation: int = 0

    def rebalance(self) -> None:
        """Everybody hears of it and comes, in two rounds, as the barrier of JoinGroup makes them."""
        for name, member in self.members.items():
            told = apply_error(
                member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=member.generation
            )
            self.members[name] = callbacks(told, self.settings)
            self.no_partition_is_read_twice()
        self.generation += 1
        leader = next(iter(self.members))
        protocol = self.settings.assignors[0].name
        described = tuple(
            JoinGroupResponseMember(
                member_id=name, metadata=build_join_request(member, self.settings).protocols[0].metadata
            )
            for name, member in self.members.items()
        )
        for name, member in self.members.items():
            answer = JoinGroupResponse(
                generation_id=self.generation,
                protocol_name=protocol,
                leader=leader,
                member_id=name,
                members=described if name == leader else (),
            )
            self.members[name] = apply_join_response(member, answer)
        led, request = perform_assignment(self.members[leader], self.settings, topics_without_racks(TOPICS))
        self.members[leader] = led
        assigned = {MemberId(each.member_id): each.assignment for each in request.assignments}
        for name, member in self.members.items():
            answer_ = SyncGroupResponse(assignment=assigned[MemberId(name)])
            self.members[name] = callbacks(apply_sync_response(member, answer_), self.settings)
            self.no_partition_is_read_twice()

    def settle(self) -> None:
        for _ in range(4):
            self.rebalance()
            if all(member.phase is Phase.STABLE for member in self.members.values()):
                return
        raise AssertionError("it does not settle")

    def no_partition_is_read_twice(self) -> None:
        """[CLI-31] At no moment of any rebalance."""
        read = [p for member in self.members.values() for p in member.owned_partitions]
        assert len(read) == len(set(read))


@given(st.sampled_from(sorted(ASSIGNORS)), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_group_that_changes_reads_everything_once(name: str, changes: list[int]) -> None:
    """[CLI-30] A number comes or goes; then all is read, and nothing twice on the way."""
    coordinator = Coordinator(group(name))
    for number in changes:
        key = f"m{number}"
        if key in coordinator.members and len(coordinator.members) > 1:
            del coordinator.members[key]
        else:
            new = subscribe(Membership(), frozenset(TOPICS))
            coordinator.members.setdefault(key, callbacks(new, coordinator.settings))
        coordinator.settle()
        read = [p for member in coordinator.members.values() for p in member.owned_partitions]
        assert sorted(read) == sorted(ALL)


def test_a_join_tells_what_is_owned_and_when() -> None:
    member = stable(T0, settings_=COOPERATIVE)
    member = begin_join(apply_error(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1))
    said = decode_subscription(build_join_request(member, COOPERATIVE).protocols[0].metadata)
    assert (said.owned, said.generation) == ((T0,), 1)
