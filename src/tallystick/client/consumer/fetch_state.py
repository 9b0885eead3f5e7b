"""Fetch state: positions in the assigned partitions, and what to request for them. Pure.

    position known                      fetched from its leader, unless paused or data is buffered already
    position unknown, committed asked   OffsetFetch first; without a committed offset, as the next line
    position unknown, reset asked       ListOffsets: the earliest or the latest offset, or that of a time

An answer for a position that is no longer the partition's is dropped: the user has sought elsewhere, or the
assignment has changed [CLI-35].

Truncation: every request names the leader epoch of the last record; a leader whose log does not have it
returns the offset where the logs diverge (KIP-320, KIP-595), and the position goes back there.

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
"""Special timestamps of ListOffsets."""

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0


class Seeking(Enum):
    """Source of an unknown position."""

    COMMITTED = "the group's committed offset"
    EARLIEST = "the first offset there is"
    LATEST = "the end"


@frozen
class Position:
    """Next offset to read, and the leader epoch of the record before it; None for unknown."""

    offset: int
    leader_epoch: int | None = None


@dataclass(slots=True)
class Track:
    """State of one assigned partition; changed by `Tracks` alone.

    position   None while it is being sought
    seeking    where it comes from
    serial     changes with every seek and assignment: an answer to an earlier request is dropped
    at_hand    fetched data waits to be taken, or a request for it is in flight
    replica    a broker nearer than the leader (KIP-392)
    pinned     a position that does not exist is an error, whatever auto.offset.reset says
    restart    where reading resumes if the records returned since do not count: the last commit, or else
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
    """Meaning of an answer for one partition."""

    DATA = "take what came"
    STALE = "about an earlier position"
    AGAIN = "ask again"
    REFRESH = "look for the leader, then ask again"
    LEADER = "the nearer replica will not do: ask the leader"
    RESET = "the position does not exist"
    TRUNCATED = "the log was cut below the position"
    FAIL = "asking again cannot help"


def verdict_of(code: int, *, from_replica: bool, diverges: bool) -> Verdict:
    """Return the verdict on a partition's answer to Fetch.

    Args:
        from_replica: the broker asked was not the leader.
        diverges: the answer says where the leader's log diverges from ours.
    """
    if code == ErrorCode.NONE:
        return Verdict.TRUNCATED if diverges else Verdict.DATA
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        # KIP-392: a follower may lag; only the leader's answer is conclusive.
        return Verdict.LEADER if from_replica else Verdict.RESET
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return Verdict.AGAIN
    return _OF_REMEDY.get(rule_for("Fetch", code).remedy, Verdict.FAIL)


_OF_REMEDY: Final = {Remedy.RETRY: Verdict.AGAIN, Remedy.REFRESH: Verdict.REFRESH}


class Tracks:
    """All assigned partitions."""

    def __init__(self, reset: Seeking | None) -> None:
        """Start without partitions.

        Args:
            reset: `auto.offset.reset`; None for `none`.
        """
        self._reset = reset
        self._tracks: dict[TopicPartition, Track] = {}
        # Shared by all partitions: one that is revoked and assigned again gets a new serial.
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
        """Read these partitions and no others; those read before keep their positions.

        Args:
            committed: whether new ones begin at the group's committed offset.
        """
        start = Seeking.COMMITTED if committed else (self._reset or Seeking.COMMITTED)
        self._tracks = {
            p: self._tracks.get(p) or Track(seeking=start, serial=next(self._serials)) for p in partitions
        }

    def seek(self, partition: TopicPartition, to: Position | Seeking) -> None:
        """Change the position; data in flight or buffered is dropped."""
        track = self._tracks[partition]
        track.serial = next(self._serials)
        track.at_hand = False
        if isinstance(to, Position):
            track.position = track.restart = to
        else:
            track.position, track.restart, track.seeking = None, None, to

    def go_back(self, partition: TopicPartition, to: Position) -> None:
        """Seek back, but keep `restart` if it is earlier: records returned before `to` stay uncommitted."""
        restart = self._tracks[partition].restart
        self.seek(partition, to)
        if restart is not None and restart.offset < to.offset:
            self._tracks[partition].restart = restart

    def committed(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Move `restart` up to committed offsets. Offsets of an earlier assignment or seek are ignored."""
        for partition, to in offsets.items():
            track = self._tracks.get(partition)
            if track is None or track.position is None or track.restart is None:
                continue
            if track.restart.offset <= to.offset <= track.position.offset:
                track.restart = to

    def rewind(self) -> None:
        """Return records again that were returned and never committed [CLI-68]."""
        for partition, track in self._tracks.items():
            position, restart = track.position, track.restart
            if position is not None and restart is not None and restart.offset < position.offset:
                self.seek(partition, restart)

    def found(self, partition: TopicPartition, serial: int, position: Position | None) -> bool:
        """Set a position that was sought; None for none. Return False if there is no reset policy."""
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
        """Move the position past records that were taken."""
        track = self._tracks.get(partition)
        if track is not None and track.serial == serial:
            track.position = to

    def out_of_range(self, partition: TopicPartition) -> bool:
        """Reset a position that does not exist. Return False if that is an error for the user."""
        if self._reset is None or self._tracks[partition].pinned:
            return False
        self.seek(partition, self._reset)
        return True

    def truncated(self, partition: TopicPartition, end_offset: int, epoch: int | None) -> bool:
        """Go back to where the leader's log ends the last record's epoch. Return False as `out_of_range`."""
        track = self._tracks[partition]
        if self._reset is None or track.position is None or track.pinned:
            return False
        self.go_back(partition, Position(min(end_offset, track.position.offset), epoch))
        return True

    def seeks(self, partition: TopicPartition, serial: int, where: Seeking) -> bool:
        """Tell whether the position asked for under this serial is still sought."""
        track = self._tracks.get(partition)
        return (
            track is not None and track.serial == serial and track.position is None and track.seeking is where
        )

    def sought(self, where: Seeking) -> dict[TopicPartition, int]:
        """Return the partitions whose position is sought in this way, with the serial of the request."""
        return {
            partition: track.serial
            for partition, track in self._tracks.items()
            if track.position is None and track.seeking is where
        }

    def fetchable(self) -> Iterable[tuple[TopicPartition, Track, Position]]:
        """Return the partitions that may be fetched now."""
        return (
            (partition, track, track.position)
            for partition, track in self._tracks.items()
            if track.position is not None and not track.paused and not track.at_hand
        )


@frozen
class Wanted:
    """Fetch parameters of one partition."""

    offset: int
    max_bytes: int
    leader_epoch: int | None
    last_fetched_epoch: int | None


@frozen
class SessionStep:
    """One request of a session: partitions to name, and partitions to remove."""

    session_id: int
    epoch: int
    asked: Mapping[TopicPartition, Wanted]
    forgotten: tuple[TopicPartition, ...]


class FetchSession:
    """Client's half of a fetch session with one broker (KIP-227). One request is in flight at a time."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    def step(self, wanted: Mapping[TopicPartition, Wanted]) -> SessionStep:
        """Return the next request for `wanted`: everything in a new session, else only what changed."""
        if self._epoch == INITIAL_EPOCH:
            asked: Mapping[TopicPartition, Wanted] = wanted
            forgotten: tuple[TopicPartition, ...] = ()
        else:
            asked = {p: want for p, want in wanted.items() if self._known.get(p) != want}
            forgotten = tuple(p for p in self._known if p not in wanted)
        self._known = dict(wanted)
        return SessionStep(self._id, self._epoch, asked, forgotten)

    def answered(self, error: int, session_id: int) -> None:
        """Continue the session after an answer, or begin a new one with the next request."""
        if error != ErrorCode.NONE:
            # KIP-227: the broker has no session with this id, or one at another epoch: begin anew.
            gone = error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._id, self._epoch = (0 if gone else self._id), INITIAL_EPOCH
        elif session_id == 0:
            self._id, self._epoch = 0, INITIAL_EPOCH
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def lost(self) -> None:
        """Begin a new session: without an answer, it is unknown whether the broker applied the request."""
        self._epoch = INITIAL_EPOCH
