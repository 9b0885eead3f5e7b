"""Where a consumer is in its partitions, and what it asks brokers for. Pure.

    position known                      fetched from its leader, unless paused or something is at hand already
    position unknown, committed asked   OffsetFetch first; without a committed offset, as the next line
    position unknown, reset asked       ListOffsets: the earliest or the latest offset, or that of a time

An answer for a position that is no longer the partition's is no news: the user sought elsewhere, or another
assignment came [CLI-35].

Truncation: every request says which leader epoch the last record was from; a leader whose log does not have
it answers where the logs part (KIP-320, KIP-595), and the position goes back there.

`FetchSession` is the client's half of KIP-227: it names what changed since the last request.

Source: KIP-227, KIP-320; SubscriptionState, FetchSessionHandler, FetchCollector.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Final

from tallystick.client.retry import rule_for
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import INT32_MAX, TopicPartition
from tallystick.kernel.value import frozen

LATEST_MS: Final = -1
EARLIEST_MS: Final = -2
"""Times that ListOffsets takes for a place."""

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0


class Seeking(Enum):
    """Where an unknown position comes from."""

    COMMITTED = "the group's committed offset"
    EARLIEST = "the first offset there is"
    LATEST = "the end"


@frozen
class Position:
    """The next offset to read, and the leader epoch of the record before it; None for unknown."""

    offset: int
    leader_epoch: int | None = None


@dataclass(slots=True)
class Track:
    """What is known of one assigned partition; changed by `Tracks` alone.

    position   None while it is being sought
    seeking    where it comes from
    serial     another one with every seek and assignment: an answer to a question from before is dropped
    at_hand    fetched data of it waits to be taken, or a request for it is on its way
    replica    a broker nearer than the leader (KIP-392)
    pinned     a position that does not exist is an error, whatever auto.offset.reset says
    restart    where reading goes on if what was returned since does not count: the last commit, or else
               where it began or was sought; None with the position
    """

    position: Position | None = None
    seeking: Seeking = Seeking.COMMITTED
    serial: int = 0
    paused: bool = False
    at_hand: bool = False
    replica: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    pinned: bool = False
    restart: Position | None = None


class Verdict(Enum):
    """What an answer for one partition means."""

    DATA = "take what came"
    STALE = "about an earlier position"
    AGAIN = "ask again"
    REFRESH = "look for the leader, then ask again"
    LEADER = "the nearer replica will not do: ask the leader"
    RESET = "the position does not exist"
    TRUNCATED = "the log was cut below the position"
    FAIL = "asking again cannot help"


def verdict_of(code: int, *, from_replica: bool, diverges: bool) -> Verdict:
    """The decision table of a partition's answer to Fetch.

    Args:
        from_replica: the broker asked was not the leader.
        diverges: the answer says where the leader's log parts from ours.
    """
    if code == ErrorCode.NONE:
        return Verdict.TRUNCATED if diverges else Verdict.DATA
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        # A replica may be behind; only the leader knows what there is (KIP-392).
        return Verdict.LEADER if from_replica else Verdict.RESET
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return Verdict.AGAIN
    return _OF_REMEDY.get(rule_for("Fetch", code).remedy, Verdict.FAIL)


_OF_REMEDY: Final = {Remedy.RETRY: Verdict.AGAIN, Remedy.REFRESH: Verdict.REFRESH}


class Tracks:
    """All assigned partitions."""

    def __init__(self, reset: Seeking | None) -> None:
        """Args:
        reset: `auto.offset.reset`; None for `none`.
        """
        self._reset = reset
        self._tracks: dict[TopicPartition, Track] = {}
        # One row for all: a partition that goes and comes back is not the one that was asked about.
        self._serials = count()

    def __contains__(self, partition: object) -> bool:
        return partition in self._tracks

    def __getitem__(self, partition: TopicPartition) -> Track:
        return self._tracks[partition]

    def get(self, partition: TopicPartition) -> Track | None:
        return self._tracks.get(partition)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self._tracks)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(p for p, track in self._tracks.items() if track.paused)

    def assign(self, partitions: Collection[TopicPartition], *, committed: bool) -> None:
        """Read these and nothing else; what was read before keeps its position.

        Args:
            committed: whether new ones begin at the group's committed offset.
        """
        start = Seeking.COMMITTED if committed else (self._reset or Seeking.COMMITTED)
        self._tracks = {
            p: self._tracks.get(p) or Track(seeking=start, serial=next(self._serials)) for p in partitions
        }

    def seek(self, partition: TopicPartition, to: Position | Seeking) -> None:
        """Go elsewhere; what is on its way or at hand is dropped."""
        track = self._tracks[partition]
        track.serial = next(self._serials)
        track.at_hand = False
        if isinstance(to, Position):
            track.position = track.restart = to
        else:
            track.position, track.restart, track.seeking = None, None, to

    def go_back(self, partition: TopicPartition, to: Position) -> None:
        """As `seek`, for what was returned behind `to` alone: what was returned before stays uncommitted."""
        restart = self._tracks[partition].restart
        self.seek(partition, to)
        if restart is not None and restart.offset < to.offset:
            self._tracks[partition].restart = restart

    def committed(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """What was returned before these counts. Offsets of another time, or another seek, do not matter."""
        for partition, to in offsets.items():
            track = self._tracks.get(partition)
            if track is None or track.position is None or track.restart is None:
                continue
            if track.restart.offset <= to.offset <= track.position.offset:
                track.restart = to

    def rewind(self) -> None:
        """Return again what was returned and never committed [CLI-68]."""
        for partition, track in self._tracks.items():
            position, restart = track.position, track.restart
            if position is not None and restart is not None and restart.offset < position.offset:
                self.seek(partition, restart)

    def found(self, partition: TopicPartition, serial: int, position: Position | None) -> bool:
        """A sought position was found, or there is none. False where nobody said where to begin."""
        track = self._tracks.get(partition)
        if track is None or track.serial != serial or track.position is not None:
            return True
        if position is not None:
            track.position = track.restart = position
        elif track.seeking is Seeking.COMMITTED:
            if self._reset is None:
                return False
            track.seeking = self._reset
        return True

    def advance(self, partition: TopicPartition, serial: int, to: Position) -> None:
        """Records were taken: the position is behind them."""
        track = self._tracks.get(partition)
        if track is not None and track.serial == serial:
            track.position = to

    def out_of_range(self, partition: TopicPartition) -> bool:
        """The position does not exist. False where the user wants to hear of that."""
        if self._reset is None or self._tracks[partition].pinned:
            return False
        self.seek(partition, self._reset)
        return True

    def truncated(self, partition: TopicPartition, end_offset: int, epoch: int | None) -> bool:
        """The leader's log has our last record's epoch only up to there. False as `out_of_range`."""
        track = self._tracks[partition]
        if self._reset is None or track.position is None or track.pinned:
            return False
        self.go_back(partition, Position(min(end_offset, track.position.offset), epoch))
        return True

    def seeks(self, partition: TopicPartition, serial: int, where: Seeking) -> bool:
        """Is the position that was asked for under this serial still to be found?"""
        track = self._tracks.get(partition)
        return (
            track is not None and track.serial == serial and track.position is None and track.seeking is where
        )

    def sought(self, where: Seeking) -> dict[TopicPartition, int]:
        """Partitions without a position, by where it is to come from, with the serial of the question."""
        return {
            partition: track.serial
            for partition, track in self._tracks.items()
            if track.position is None and track.seeking is where
        }

    def fetchable(self) -> Iterable[tuple[TopicPartition, Track, Position]]:
        """What may be asked for now."""
        return (
            (partition, track, track.position)
            for partition, track in self._tracks.items()
            if track.position is not None and not track.paused and not track.at_hand
        )


@frozen
class Wanted:
    """What is asked of one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int | None
    last_fetched_epoch: int | None


@frozen
class SessionStep:
    """One request of a session: what to name, and what to take back."""

    session_id: int
    epoch: int
    asked: Mapping[TopicPartition, Wanted]
    forgotten: tuple[TopicPartition, ...]


class FetchSession:
    """The client's half of a fetch session with one broker (KIP-227). One request is on its way at a time."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    def step(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionStep:
        """The next request for `wanted`: all of it in a new session, and else what changed."""
        if self._epoch == INITIAL_EPOCH:
            asked: Mapping[TopicPartition, Wanted] = wanted
            forgotten: tuple[TopicPartition, ...] = ()
        else:
            asked = {p: want for p, want in wanted.items() if self._known.get(p) != want}
            forgotten = tuple(p for p in self._known if p not in wanted)
        self._known = dict(wanted)
        return SessionStep(self._id, self._epoch, asked, forgotten)

    def answered(self, error: int, session_id: int) -> None:
        """The broker answered: the session goes on, or a new one begins with the next request."""
        if error != ErrorCode.NONE:
            # Told to begin anew; the broker has no session by our id, or one that is ahead of us.
            gone = error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._id, self._epoch = (0 if gone else self._id), INITIAL_EPOCH
        elif session_id == 0:
            self._id, self._epoch = 0, INITIAL_EPOCH
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def lost(self) -> None:
        """No answer: whether the broker took the step is unknown, so a new session replaces this one."""
        self._epoch = INITIAL_EPOCH
