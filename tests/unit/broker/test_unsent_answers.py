"""Answers that are not read: counted over all connections, and who does not read is closed [SRV-2]."""

from collections.abc import Callable
from typing import Any

from tallystick.broker.server.unsent import TAKEN_BYTES_MIN, HandedOver, UnsentAnswers

BOUND, PATIENCE_S = 1_000_000, 3.0


class Peer:
    def __init__(self, unsent_bytes: int) -> None:
        self.unsent_bytes = self.handed_bytes = unsent_bytes
        self.handed_over: Any = self
        self.why = ""

    def hand_over(self, size: int) -> None:
        self.unsent_bytes += size
        self.handed_bytes += size

    def count_held(self, unsent_bytes: int) -> int:
        return unsent_bytes

    def count_sent(self, unsent_bytes: int) -> int:
        return self.handed_bytes - unsent_bytes

    def close(self, why: str) -> None:
        self.unsent_bytes, self.why = 0, why


class World:
    """A loop whose time passes when it is told to."""

    def __init__(self, *sizes: int) -> None:
        self.now_s = 0.0
        self.timers: list[Callable[[], None]] = []
        self.rooms = 0
        loop: Any = self
        self.unsent = UnsentAnswers(loop, lambda: BOUND, PATIENCE_S, self.note_room)
        self.peers = [Peer(size) for size in sizes]
        for peer in self.peers:
            self.unsent.add(peer)

    def note_room(self) -> None:
        self.rooms += 1

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> object:
        self.timers.append(call)
        return call

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        timers, self.timers = self.timers, []
        for call in timers:
            call()

    @property
    def closed(self) -> list[int]:
        return [index for index, peer in enumerate(self.peers) if peer.why]


def test_above_the_bound_the_largest_that_does_not_read_is_closed_and_no_more_than_needed() -> None:
    world = World(300_000, 500_000, 400_000)
    world.unsent.check()
    assert world.closed == []
    world.pass_time(PATIENCE_S)
    assert world.closed == [1]
    assert "of 500000 bytes" in world.peers[1].why
    assert world.unsent.total == 700_000


def test_who_reads_slowly_is_spared() -> None:
    world = World(600_000, 500_000)
    world.unsent.check()
    world.peers[0].unsent_bytes -= TAKEN_BYTES_MIN
    world.pass_time(PATIENCE_S)
    assert world.closed == [1]


def test_who_takes_as_much_as_comes_is_spared_though_never_less_is_left() -> None:
    world = World(600_000, 500_000)
    world.unsent.check()
    world.peers[0].unsent_bytes -= TAKEN_BYTES_MIN
    world.peers[0].hand_over(TAKEN_BYTES_MIN)
    world.pass_time(PATIENCE_S)
    assert world.closed == [1]


def test_who_took_everything_meanwhile_begins_anew_with_the_next_answer() -> None:
    """While others keep much unsent: the time of an answer that was taken is not held against the next."""
    world = World(600_000, 550_000)
    world.unsent.check()
    world.now_s += PATIENCE_S - 1
    world.peers[0].unsent_bytes = 0
    assert world.unsent.total == 550_000
    world.now_s += 1
    world.peers[0].hand_over(600_000)
    world.unsent.add(world.peers[0])
    world.unsent.check()
    assert world.closed == [1]


def test_below_the_bound_no_connection_is_closed_however_long_it_takes() -> None:
    world = World(500_000, 500_000)
    world.unsent.check()
    for _ in range(10):
        world.pass_time(PATIENCE_S)
    assert world.closed == []
    assert world.rooms == 10


def test_an_old_answer_that_was_read_is_not_held_against_the_next_one() -> None:
    world = World(600_000)
    world.unsent.check()
    world.peers[0].unsent_bytes = 0
    world.pass_time(PATIENCE_S)
    assert world.timers == []
    world.peers[0].hand_over(BOUND + 1)
    world.unsent.add(world.peers[0])
    world.pass_time(10 * PATIENCE_S)
    world.unsent.check()
    assert world.closed == []
    world.pass_time(PATIENCE_S)
    assert world.closed == [0]


def test_a_lost_connection_is_forgotten() -> None:
    world = World(BOUND, 600_000)
    world.unsent.check()
    world.unsent.discard(world.peers[0])
    assert world.unsent.total == 600_000
    world.pass_time(PATIENCE_S)
    assert world.closed == []


def test_many_peers_of_which_none_is_slow_enough_to_be_noticed_alone_count_together() -> None:
    world = World(*[200_000] * 6)
    world.pass_time(PATIENCE_S / 3)
    world.pass_time(PATIENCE_S)
    assert len(world.closed) == 1


def test_a_waiter_for_room_learns_of_reads_that_no_event_announced() -> None:
    world = World(*[200_000] * 6)
    for peer in world.peers:
        peer.unsent_bytes = 0
    world.pass_time(PATIENCE_S / 3)
    assert world.rooms == 1


def test_an_answer_is_held_whole_until_its_last_byte_is_sent() -> None:
    """The kernel takes four megabytes of six at once: the transport keeps the six, and says two."""
    sent = HandedOver()
    assert sent.count_held(0) == 0
    sent.add(6_000_000)
    assert sent.count_held(2_000_000) == 6_000_000
    sent.add(1_000)
    assert sent.count_held(2_001_000) == 6_001_000
    assert sent.count_held(1_000) == 1_000
    assert sent.count_held(0) == 0


def test_a_transport_that_encrypts_may_have_more_left_than_it_was_given() -> None:
    sent = HandedOver()
    sent.add(1_000)
    assert sent.count_held(1_022) == 1_000
    assert sent.count_held(0) == 0


def test_a_peer_that_reads_is_not_closed_although_its_answer_is_held() -> None:
    world = World()
    peer = Peer(BOUND + 1)
    peer.handed_over = HandedOver()
    peer.handed_over.add(BOUND + 1)
    world.peers = [peer]
    world.unsent.add(peer)
    for _ in range(5):
        peer.unsent_bytes -= TAKEN_BYTES_MIN
        world.pass_time(PATIENCE_S)
        world.unsent.check()
    assert world.unsent.total == BOUND + 1
    assert world.closed == []
    world.pass_time(PATIENCE_S)
    world.pass_time(PATIENCE_S)
    assert world.closed == [0]
