"""A member of a group: against answers at random, and several of them against a plain coordinator."""

from dataclasses import dataclass, field

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tallystick.client.assignors.assign import ASSIGNORS
from tallystick.client.assignors.racks import without_racks
from tallystick.client.assignors.subscription import decode_subscription, encode_assignment
from tallystick.client.consumer.membership import (
    NOBODY,
    REACTIONS,
    Change,
    GroupSettings,
    Member,
    Phase,
    Reaction,
    before_joining,
    expire,
    gave_up,
    heartbeat_request,
    join_request,
    joined,
    lead,
    leave,
    leave_request,
    prepared,
    reaction_to,
    refused,
    seen,
    settled,
    subscribe,
    synced,
    to_settle,
    topics_of,
    unanswered,
)
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.ids import GroupId, MemberId, TopicPartition
from tallystick.protocol import encode
from tallystick.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tallystick.protocol.messages.sync_group import SyncGroupResponse

TOPICS = {"t": 3, "u": 2}
ALL = frozenset(TopicPartition(topic, n) for topic, count in TOPICS.items() for n in range(count))


def group(*assignors: str, instance_id: str | None = None) -> GroupSettings:
    return GroupSettings(
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


def callbacks(member: Member, group_settings: GroupSettings) -> Member:
    """What `poll` does: run the callbacks of the phase until there are none left."""
    while True:
        if member.phase is Phase.PREPARING:
            change = before_joining(member, group_settings)
            if not change.gives_up:
                return prepared(member)
        elif member.phase is Phase.SETTLING:
            change = to_settle(member)
            if not change.gives_up:
                return settled(member)
        else:
            return member
        member = gave_up(member, change)


def stable(*partitions: TopicPartition, settings_: GroupSettings = EAGER) -> Member:
    member = callbacks(subscribe(Member(), frozenset(TOPICS)), settings_)
    return callbacks(synced(joined(member, join_answer()), sync_answer(*partitions)), settings_)


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_an_eager_member_gives_up_everything_before_it_joins() -> None:
    member = refused(stable(T0, T1), "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1)
    assert member.phase is Phase.PREPARING
    assert before_joining(member, EAGER) == Change(revoked=frozenset({T0, T1}))
    assert callbacks(member, EAGER).owned == frozenset()


def test_a_cooperative_member_keeps_what_it_has_until_it_is_told_otherwise() -> None:
    """KIP-429: give up after the assignment, then join again."""
    member = stable(T0, T1, settings_=COOPERATIVE)
    member = refused(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1)
    assert not before_joining(member, COOPERATIVE).gives_up
    member = synced(joined(prepared(member), join_answer(generation=2)), sync_answer(T0, U0))
    assert to_settle(member) == Change(revoked=frozenset({T1}), added=frozenset({U0}))
    member = callbacks(member, COOPERATIVE)
    assert member.owned == {T0, U0}
    assert member.phase is Phase.PREPARING, "and again, so that somebody else can have t-1"


def test_a_cooperative_member_gives_up_topics_it_no_longer_wants_before_it_joins() -> None:
    member = subscribe(stable(T0, U0, settings_=COOPERATIVE), frozenset({"t"}))
    assert before_joining(member, COOPERATIVE) == Change(revoked=frozenset({U0}))


@pytest.mark.parametrize("settings_", [EAGER, COOPERATIVE])
def test_without_a_generation_partitions_are_lost_and_not_given_up(settings_: GroupSettings) -> None:
    member = stable(T0, settings_=settings_)
    gone = refused(member, "Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID, generation=1)
    assert before_joining(gone, settings_) == Change(lost=frozenset({T0}))
    assert gone.member_id == NOBODY
    behind = refused(member, "Heartbeat", ErrorCode.ILLEGAL_GENERATION, generation=1)
    assert behind.member_id == "m", "the id still holds"
    assert expire(member).generation is None, "KIP-62: no poll for max.poll.interval.ms"
    assert leave(behind)[1] == Change(lost=frozenset({T0}))
    assert leave(member)[1] == Change(revoked=frozenset({T0}))


def test_what_a_later_generation_made_obsolete_is_no_news() -> None:
    member = stable(T0)
    assert refused(member, "Heartbeat", ErrorCode.ILLEGAL_GENERATION, generation=0) == member
    joining = prepared(refused(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1))
    assert refused(joining, "OffsetCommit", ErrorCode.UNKNOWN_MEMBER_ID, generation=1) == joining


def test_a_member_id_is_given_first() -> None:
    """KIP-394."""
    member = callbacks(subscribe(Member(), frozenset({"t"})), EAGER)
    told = refused(member, "JoinGroup", ErrorCode.MEMBER_ID_REQUIRED, generation=None, member_id="m-1")
    assert told.phase is Phase.JOINING
    assert join_request(told, EAGER).member_id == "m-1"


def test_a_fenced_static_member_fails() -> None:
    """KIP-345: another one came under the same instance id."""
    member = refused(stable(T0), "Heartbeat", ErrorCode.FENCED_INSTANCE_ID, generation=1)
    assert member.phase is Phase.FAILED
    assert member.failure == ("Heartbeat", ErrorCode.FENCED_INSTANCE_ID)
    assert leave(member)[1] == Change(lost=frozenset({T0})), "the other one reads it"


def test_static_members_do_not_leave() -> None:
    assert leave_request(stable(T0), group("range", instance_id="i"), "closing") is None
    assert leave_request(Member(), EAGER, "never joined") is None
    request = leave_request(stable(T0), EAGER, "x" * 999)
    assert request is not None
    assert len(request.members[0].reason or "") == 255


def test_an_assignment_of_topics_no_longer_wanted_is_not_taken_over() -> None:
    member = prepared(subscribe(Member(), frozenset({"t", "u"})))
    member = subscribe(joined(member, join_answer()), frozenset({"t"}))
    assert synced(member, sync_answer(T0, U0)).phase is Phase.PREPARING
    assert callbacks(synced(member, sync_answer(T0)), EAGER).phase is Phase.PREPARING, "it joined for both"


def test_one_eager_assignor_makes_a_member_eager() -> None:
    assert not group("range", "cooperative-sticky").cooperative
    assert group("cooperative-sticky").cooperative


def test_the_leader_looks_for_new_partitions() -> None:
    member = callbacks(subscribe(Member(), frozenset({"t"})), EAGER)
    metadata = join_request(member, EAGER).protocols[0].metadata
    answer = JoinGroupResponse(
        generation_id=1,
        protocol_name="range",
        leader="m",
        member_id="m",
        members=(JoinGroupResponseMember(member_id="m", metadata=metadata),),
    )
    member = joined(member, answer)
    assert topics_of(member) == {"t"}
    member, request = lead(member, EAGER, without_racks({"t": 1}))
    assert request.assignments[0].assignment == encode_assignment([T0])
    member = callbacks(synced(member, sync_answer(T0)), EAGER)
    assert seen(member, without_racks({"t": 1})).phase is Phase.STABLE
    assert seen(member, without_racks({"t": 2})).phase is Phase.PREPARING


def test_a_static_leader_that_returns_assigns_nothing_and_watches_all_the_same() -> None:
    """KIP-814."""
    member = callbacks(subscribe(Member(), frozenset({"t"})), EAGER)
    metadata = join_request(member, EAGER).protocols[0].metadata
    answer = JoinGroupResponse(
        generation_id=4,
        protocol_name="range",
        leader="m",
        member_id="m",
        skip_assignment=True,
        members=(JoinGroupResponseMember(member_id="m", metadata=metadata),),
    )
    member = joined(member, answer)
    assert topics_of(member) == {"t"}
    member, request = lead(member, EAGER, without_racks({"t": 1}))
    assert request.assignments == ()
    assert member.watched == without_racks({"t": 1})


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit"])
def test_every_code_has_a_reaction(api: str) -> None:
    assert reaction_to(api, 9999) is Reaction.FAIL
    for code in ErrorCode:
        assert (api, code) not in REACTIONS or reaction_to(api, code) is REACTIONS[api, code]
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        assert reaction_to(api, code) is Reaction.FIND_COORDINATOR
    for code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED):
        assert reaction_to(api, code) is Reaction.FAIL


# ------------------------------------------------------------------- answers at random

CODES = st.sampled_from([*ErrorCode]).map(int)


class AnyAnswers(RuleBasedStateMachine):
    """One member, told anything at any time."""

    @initialize(cooperative=st.booleans())
    def begin(self, cooperative: bool) -> None:
        self.settings = COOPERATIVE if cooperative else EAGER
        self.member = Member()
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
        self.reading = self.member.owned
        assert before is not Phase.PREPARING or self.member.phase is Phase.JOINING

    @rule()
    def leave(self) -> None:
        self.member, change = leave(self.member)
        assert change.revoked | change.lost == self.reading
        self.reading = frozenset()

    @precondition(lambda self: self.member.phase is Phase.JOINING)
    @rule(leads=st.booleans())
    def join(self, leads: bool) -> None:
        encode(join_request(self.member, self.settings), 9)
        self.generation += 1
        self.member = joined(self.member, join_answer("m", self.generation, "m" if leads else "l"))

    @precondition(lambda self: self.member.phase is Phase.SYNCING)
    @rule(partitions=st.sets(st.sampled_from(sorted(ALL))))
    def sync(self, partitions: set[TopicPartition]) -> None:
        _, request = lead(self.member, self.settings, without_racks(TOPICS))
        encode(request, 5)
        self.member = synced(self.member, sync_answer(*partitions))

    @rule(code=CODES, stale=st.booleans())
    def refuse(self, code: int, stale: bool) -> None:
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(self.member.phase, "Heartbeat")
        generation = -5 if stale else self.member.generation
        self.member = refused(self.member, api, code, generation=generation, member_id="given")

    @rule()
    def lose_the_connection(self) -> None:
        api = {Phase.JOINING: "JoinGroup", Phase.SYNCING: "SyncGroup"}.get(self.member.phase, "Heartbeat")
        self.member = unanswered(self.member, api)

    @rule()
    def be_late(self) -> None:
        self.member = expire(self.member)

    @invariant()
    def nothing_is_read_or_given_up_behind_the_users_back(self) -> None:
        assert self.member.owned == self.reading

    @invariant()
    def an_eager_member_joins_with_nothing(self) -> None:
        if self.member.phase in (Phase.JOINING, Phase.SYNCING) and not self.settings.cooperative:
            assert not self.member.owned

    @invariant()
    def who_beats_has_a_generation(self) -> None:
        if self.member.beats:
            encode(heartbeat_request(self.member, self.settings), 4)
            assert self.member.generation is not None

    @invariant()
    def without_a_generation_everything_is_lost_first(self) -> None:
        member = self.member
        if member.phase is Phase.PREPARING and member.generation is None:
            assert before_joining(member, self.settings) == Change(lost=member.owned)

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
                member = joined(member, join_answer("m", self.generation + 1))
            if member.phase is Phase.SYNCING:
                member = synced(member, sync_answer(*(p for p in ALL if p.topic in member.topics)))
        raise AssertionError(member)


TestAnyAnswers = AnyAnswers.TestCase
TestAnyAnswers.settings = settings(max_examples=examples(quick=20, full=60), stateful_step_count=40)


# ------------------------------------------------------------- several, and a coordinator


@dataclass
class Coordinator:
    """Waits for everybody, asks the first one for the assignment."""

    settings: GroupSettings
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0

    def rebalance(self) -> None:
        """Everybody hears of it and comes, in two rounds, as the barrier of JoinGroup makes them."""
        for name, member in self.members.items():
            told = refused(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=member.generation)
            self.members[name] = callbacks(told, self.settings)
            self.no_partition_is_read_twice()
        self.generation += 1
        leader = next(iter(self.members))
        protocol = self.settings.assignors[0].name
        described = tuple(
            JoinGroupResponseMember(
                member_id=name, metadata=join_request(member, self.settings).protocols[0].metadata
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
            self.members[name] = joined(member, answer)
        led, request = lead(self.members[leader], self.settings, without_racks(TOPICS))
        self.members[leader] = led
        assigned = {MemberId(each.member_id): each.assignment for each in request.assignments}
        for name, member in self.members.items():
            answer_ = SyncGroupResponse(assignment=assigned[MemberId(name)])
            self.members[name] = callbacks(synced(member, answer_), self.settings)
            self.no_partition_is_read_twice()

    def settle(self) -> None:
        for _ in range(4):
            self.rebalance()
            if all(member.phase is Phase.STABLE for member in self.members.values()):
                return
        raise AssertionError("it does not settle")

    def no_partition_is_read_twice(self) -> None:
        """[CLI-31] At no moment of any rebalance."""
        read = [p for member in self.members.values() for p in member.owned]
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
            new = subscribe(Member(), frozenset(TOPICS))
            coordinator.members.setdefault(key, callbacks(new, coordinator.settings))
        coordinator.settle()
        read = [p for member in coordinator.members.values() for p in member.owned]
        assert sorted(read) == sorted(ALL)


def test_a_join_tells_what_is_owned_and_when() -> None:
    member = stable(T0, settings_=COOPERATIVE)
    member = prepared(refused(member, "Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, generation=1))
    said = decode_subscription(join_request(member, COOPERATIVE).protocols[0].metadata)
    assert (said.owned, said.generation) == ((T0,), 1)
