"""KIP-134, 345, 394: the sentences the group coordinator is built on."""

from harness.groups import GroupMachineHarness
from tallystick.broker.group.machine.commands import (
    Heartbeat,
    JoinGroup,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupResult,
    LeavingMember,
    MemberIdRequired,
    SyncGroup,
    SyncGroupResult,
)
from tallystick.broker.group.machine.model import GroupConfig, GroupState, InstanceId, MemberProtocol
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import GroupId, MemberId

G = GroupId("g")


def join(
    world: GroupMachineHarness,
    member_id: MemberId | None = None,
    *,
    instance: str | None = None,
    version: int = 9,
) -> object:
    """One JoinGroup; the answer, or None while it is parked."""
    return world.run(
        G,
        JoinGroup(
            member_id=member_id,
            instance_id=None if instance is None else InstanceId(instance),
            client_id="c",
            client_host="/h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=(MemberProtocol("range", b""),),
            requires_known_member_id=version >= 4,
            supports_skip_assignment=version >= 9,
            ticket=world.new_ticket(),
        ),
    )


def sync(world: GroupMachineHarness, member_id: MemberId) -> object:
    group = world.groups[G]
    return world.run(
        G,
        SyncGroup(
            member_id=member_id,
            generation=group.generation,
            assignments={name: name.encode() for name in group.members},
            ticket=world.new_ticket(),
        ),
    )


def joined(world: GroupMachineHarness) -> list[JoinGroupResult]:
    return [answer for _, answer in world.answers if isinstance(answer, JoinGroupResult)]


def test_kip_394_a_new_member_id_is_required_from_version_four_on() -> None:
    """KIP-394, Public Interfaces: "all the request with version >= m+1 will be returned
    with MEMBER_ID_REQUIRED error, while version <= m will still be blindly accepted for backward
    compatibility"."""
    world = GroupMachineHarness()
    assert isinstance(join(world, version=4), MemberIdRequired)
    assert not world.groups[G].members
    assert join(world, version=3) is None
    assert len(world.groups[G].members) == 1


def test_kip_394_static_members_need_no_second_round() -> None:
    """KIP-394 guards against members that pile up; an instance id keeps its one place (KIP-345)."""
    world = GroupMachineHarness()
    for _ in range(5):
        assert join(world, instance="i") is None
    assert len(world.groups[G].members) == 1


def test_kip_134_the_first_join_of_an_empty_group_is_delayed() -> None:
    """KIP-134, Public Interfaces: "the time, in milliseconds, that the GroupCoordinator will use to delay
    the initial rebalance when the first member joins an empty group"."""
    world = GroupMachineHarness(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    join(world, version=3)
    world.pass_time(2_999)
    assert not joined(world)
    world.pass_time(1)
    assert len(joined(world)) == 1


def test_kip_134_each_newcomer_extends_the_delay_up_to_the_rebalance_timeout() -> None:
    """KIP-134: the delay begins anew while members come, and ends with the rebalance timeout."""
    world = GroupMachineHarness(GroupConfig(group_initial_rebalance_delay_ms=3_000))
    for _ in range(40):
        join(world, version=3)
        world.pass_time(500)
        if joined(world):
            break
    assert 18_000 <= world.elapsed_ms <= 21_000
    assert len({answer.generation for answer in joined(world)}) == 1


def test_kip_345_a_restart_within_the_session_keeps_the_assignment_without_a_rebalance() -> None:
    """KIP-345: "The idea of this KIP is to reduce number of rebalances by introducing a new concept called
    static membership"."""
    world = GroupMachineHarness()
    join(world, instance="i")
    world.pass_time(3_000)
    (first,) = joined(world)
    assert isinstance(sync(world, first.member_id), SyncGroupResult)
    again = join(world, instance="i")
    assert isinstance(again, JoinGroupResult)
    assert again.member_id != first.member_id
    assert again.generation == first.generation
    assert world.groups[G].state is GroupState.STABLE
    synced = sync(world, again.member_id)
    assert isinstance(synced, SyncGroupResult)
    assert synced.assignment == first.member_id.encode()
    fenced = world.run(
        G, Heartbeat(member_id=first.member_id, instance_id=InstanceId("i"), generation=first.generation)
    )
    assert isinstance(fenced, Reject)
    assert fenced.code is ErrorCode.FENCED_INSTANCE_ID


def test_kip_345_leave_group_by_instance_and_by_member_id() -> None:
    """KIP-345, Client Behavior Changes: "If `member.id` is provided, the member will only be removed if the
    `member.id` matches. Otherwise, only the `group.instance.id` is used."."""
    world = GroupMachineHarness()
    join(world, instance="i")
    instance = InstanceId("i")
    wrong = LeaveGroup(members=(LeavingMember(member_id=MemberId("x"), instance_id=instance),))
    assert world.run(G, wrong) == LeaveGroupResult(errors=(ErrorCode.FENCED_INSTANCE_ID,))
    by_name = LeaveGroup(members=(LeavingMember(member_id=None, instance_id=instance),))
    assert world.run(G, by_name) == LeaveGroupResult(errors=(None,))
    assert world.run(G, by_name) == LeaveGroupResult(errors=(ErrorCode.UNKNOWN_MEMBER_ID,))


def test_kip_814_only_a_leader_of_version_nine_skips_the_assignment() -> None:
    """KIP-814: a static leader that returns learns that it leads, and that it must not assign."""
    world = GroupMachineHarness()
    join(world, instance="i")
    world.pass_time(3_000)
    (first,) = joined(world)
    sync(world, first.member_id)
    new = join(world, instance="i", version=9)
    assert isinstance(new, JoinGroupResult)
    assert (new.skip_assignment, new.leader_id, len(new.members)) == (True, new.member_id, 1)
    old = join(world, instance="i", version=8)
    assert isinstance(old, JoinGroupResult)
    assert (old.skip_assignment, old.leader_id, old.members) == (False, new.member_id, ())
