"""Fetch state: positions in the assigned partitions, and what to request for them. Pure.

    position known                      fetched from its leader, unless paused or data is buffered already
    position unknown, committed asked   OffsetFetch first; without a committed offset, as the next line
    position unknown, reset asked       ListOffsets: the earliest or the latest offset, or that of a time

An answer for a position that is no longer the partition's is dropped: the user has sought elsewhere, or the
assignment has changed [CLI-35].

Truncation: every request names the leader epoch of the last record; a leader whose log does not have it
returns the offset where the logs diverge (KIP-320, KIP-595), and the position goes back there.

A topic that was recreated is read from the same offset on; where its log does not have it, as for any other
position that does not exist, `auto.offset.reset` decides.

`FetchSessionHandler` is the client's half of KIP-227: it names what changed since the last request.

Source: KIP-227, KIP-320, KIP-516; SubscriptionState, FetchSessionHandler, FetchCollector.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Any, Final
from uuid import UUID

from tallystick.client.consumer.decode import ConsumerRecord
from tallystick.client.errors.rules import find_rule
from tallystick.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Remedy
from tallystick.kernel.ids import INT32_MAX, TopicPartition
from tallystick.kernel.value import Value
from tallystick.protocol.primitives import NIL

LATEST_MS: Final = -1
EARLIEST_MS: Final = -2
"""Special timestamps of ListOffsets."""

INITIAL_SESSION_EPOCH: Final = 0


class PositionSource(Enum):
    """Source of an unknown position."""

    COMMITTED = "the group's committed offset"
    EARLIEST = "the first offset there is"
    LATEST = "the end"


class Position(Value):
    """Next offset to read, and the leader epoch of the record before it; None for unknown."""

    offset: int
    leader_epoch: int | None = None


class SoughtRange(Value, kw_only=True):
    """What a seek is about besides its offset.

    until     nothing is fetched from here on; None for no end
    topic_id  the topic that the offset is in; None for the one that has the name
    """

    until: int | None = None
    topic_id: UUID | None = None


_WHATEVER_COMES: Final = SoughtRange()


def to_position(offset: OffsetAndMetadata | OffsetAndTimestamp) -> Position:
    """Return the position to read from, given a committed offset or one of a log."""
    return Position(offset.offset, offset.leader_epoch)


@dataclass(slots=True)
class TopicPartitionState:
    """State of one assigned partition; changed by `SubscriptionState` alone.

    position                None while it is being sought
    position_source         where it comes from
    position_version        changes with every seek and assignment: an answer to an earlier request is dropped
    has_pending_fetch       fetched data waits to be taken, or a request for it is in flight
    preferred_read_replica  a broker nearer than the leader (KIP-392), until `replica_expires_ms`
    is_pinned               a position that does not exist is an error, whatever auto.offset.reset says
    topic_id                of the topic that is read; nil until it is fetched, or where the cluster has none
    rewind_position         where reading resumes if the records returned since do not count: the last
                            commit, or else where it began or was sought; None with the position
    seek_range              what the last seek was given besides its offset
    has_other_topic         metadata named another topic than the one sought; asked once more
    """

    position: Position | None = None
    position_source: PositionSource = PositionSource.COMMITTED
    position_version: int = 0
    is_paused: bool = False
    has_pending_fetch: bool = False
    preferred_read_replica: int | None = None
    replica_expires_ms: int = 0
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    log_start_offset: int | None = None
    is_pinned: bool = False
    topic_id: UUID = NIL
    rewind_position: Position | None = None
    seek_range: SoughtRange = _WHATEVER_COMES
    has_other_topic: bool = False

    def is_other_topic(self, topic_id: UUID) -> bool:
        """Return whether this is not the topic that was sought. A cluster without topic ids cannot tell."""
        expected_id = self.seek_range.topic_id
        return expected_id is not None and topic_id not in (NIL, expected_id)


class FetchOutcome(Enum):
    """Meaning of an answer for one partition."""

    DATA = "take what came"
    STALE = "about an earlier position"
    RETRY = "ask again"
    REFRESH_METADATA = "look for the leader, then ask again"
    READ_FROM_LEADER = "the nearer replica will not do: ask the leader"
    OUT_OF_RANGE = "the position does not exist"
    TRUNCATED = "the log was cut below the position"
    FATAL = "asking again cannot help"


def classify_fetch_response(code: int, *, from_replica: bool, diverges: bool) -> FetchOutcome:
    """Return the verdict on a partition's answer to Fetch.

    Args:
        from_replica: the broker asked was not the leader.
        diverges: the answer says where the leader's log diverges from ours.
    """
    if code == ErrorCode.NONE:
        return FetchOutcome.TRUNCATED if diverges else FetchOutcome.DATA
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        # KIP-392: a follower may lag; only the leader's answer is conclusive.
        return FetchOutcome.READ_FROM_LEADER if from_replica else FetchOutcome.OUT_OF_RANGE
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return FetchOutcome.RETRY
    return _OUTCOME_BY_REMEDY.get(find_rule("Fetch", code).remedy, FetchOutcome.FATAL)


_OUTCOME_BY_REMEDY: Final = {Remedy.RETRY: FetchOutcome.RETRY, Remedy.REFRESH: FetchOutcome.REFRESH_METADATA}


class SubscriptionState:
    """All assigned partitions."""

    def __init__(self, reset: PositionSource | None) -> None:
        """Start without partitions.

        Args:
            reset: `auto.offset.reset`; None for `none`.
        """
        self._reset_source = reset
        self._states: dict[TopicPartition, TopicPartitionState] = {}
        self.unread: deque[ConsumerRecord[Any, Any]] = deque()
        """Records that an iteration has polled, and its user has not had: no commit passes them [CLI-67]."""
        # Shared by all partitions: one that is revoked and assigned again gets a new serial.
        self._position_versions = count()

    def __contains__(self, partition: object) -> bool:
        return partition in self._states

    def __getitem__(self, partition: TopicPartition) -> TopicPartitionState:
        return self._states[partition]

    def get(self, partition: TopicPartition) -> TopicPartitionState | None:
        return self._states.get(partition)

    @property
    def assigned_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._states)

    @property
    def paused_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(p for p, track in self._states.items() if track.is_paused)

    def assign(self, partitions: Collection[TopicPartition], *, committed: bool) -> None:
        """Read these partitions and no others; those read before keep their positions.

        Args:
            committed: whether new ones begin at the group's committed offset.
        """
        start = PositionSource.COMMITTED if committed else (self._reset_source or PositionSource.COMMITTED)
        self._states = {
            p: self._states.get(p)
            or TopicPartitionState(position_source=start, position_version=next(self._position_versions))
            for p in partitions
        }
        self._drop_unread(lambda partition: partition not in self._states)

    def _drop_unread(self, is_dropped: Callable[[TopicPartition], bool]) -> None:
        if self.unread:
            remaining = [
                each for each in self.unread if not is_dropped(TopicPartition(each.topic, each.partition))
            ]
            self.unread.clear()
            self.unread.extend(remaining)

    def seek(
        self,
        partition: TopicPartition,
        to: Position | PositionSource,
        seek_range: SoughtRange | None = None,
    ) -> None:
        """Change the position; data in flight or buffered is dropped.

        Args:
            seek_range: None keeps that of the last seek.
        """
        track = self._states[partition]
        self._drop_unread(partition.__eq__)
        track.seek_range = track.seek_range if seek_range is None else seek_range
        track.has_other_topic = False
        track.position_version = next(self._position_versions)
        track.has_pending_fetch = False
        if isinstance(to, Position):
            track.position = track.rewind_position = to
        else:
            track.position, track.rewind_position, track.position_source = None, None, to

    def go_back(self, partition: TopicPartition, to: Position) -> None:
        """Seek back, but keep `rewind_position` if it is earlier.

        Records returned before `to` stay uncommitted.
        """
        restart = self._states[partition].rewind_position
        self.seek(partition, to)
        if restart is not None and restart.offset < to.offset:
            self._states[partition].rewind_position = restart

    def note_committed(self, offsets: Mapping[TopicPartition, Position]) -> None:
        """Move `rewind_position` up to committed offsets.

        Offsets of an earlier assignment or seek are ignored.
        """
        for partition, to in offsets.items():
            track = self._states.get(partition)
            if track is None or track.position is None or track.rewind_position is None:
                continue
            if track.rewind_position.offset <= to.offset <= track.position.offset:
                track.rewind_position = to

    def rewind(self) -> None:
        """Return records again that were returned and never committed [CLI-68]."""
        for partition, track in self._states.items():
            position, restart = track.position, track.rewind_position
            if position is not None and restart is not None and restart.offset < position.offset:
                self.seek(partition, restart)

    def set_found_position(self, partition: TopicPartition, serial: int, position: Position | None) -> bool:
        """Set a position that was sought; None for none. Return False if there is no reset policy."""
        track = self._states.get(partition)
        if track is None or track.position_version != serial or track.position is not None:
            return True
        if position is not None:
            track.position = track.rewind_position = position
        elif track.position_source is PositionSource.COMMITTED:
            if self._reset_source is None:
                return False
            track.position_source = self._reset_source
        return True

    def advance(self, partition: TopicPartition, serial: int, to: Position) -> None:
        """Move the position past records that were taken."""
        track = self._states.get(partition)
        if track is not None and track.position_version == serial:
            track.position = to

    def note_topic_id(self, partition: TopicPartition, topic_id: UUID) -> Position | None:
        """Record which topic of this name is read now, and return the position in it.

        In a topic that was recreated, the position keeps its offset, as with Kafka's consumer. It loses the
        epoch, which is of another log: the new leader would answer that its log diverges at its end, and
        everything before that would be skipped. Where a divergence is an error for the user, the epoch stays,
        since it shows that the log is another one.
        """
        track = self._states[partition]
        if topic_id != NIL:
            is_recreated = track.topic_id not in (NIL, topic_id)
            track.topic_id = topic_id
            if is_recreated and self._reset_source is not None and not track.is_pinned:
                track.position = _without_epoch(track.position)
                track.rewind_position = _without_epoch(track.rewind_position)
        return track.position

    def note_other_topic(self, partition: TopicPartition) -> bool:
        """Record that it is not the topic that was sought. Return whether that was known: it is certain."""
        track = self._states[partition]
        was_known, track.has_other_topic = track.has_other_topic, True
        return was_known

    def reset_position(self, partition: TopicPartition) -> bool:
        """Reset a position that does not exist. Return False if that is an error for the user."""
        if self._reset_source is None or self._states[partition].is_pinned:
            return False
        self.seek(partition, self._reset_source)
        return True

    def truncate_position(self, partition: TopicPartition, end_offset: int, epoch: int | None) -> bool:
        """Go back to where the leader's log ends the last record's epoch.

        Return False as `reset_position`.
        """
        track = self._states[partition]
        if self._reset_source is None or track.position is None or track.is_pinned:
            return False
        self.go_back(partition, Position(min(end_offset, track.position.offset), epoch))
        return True

    def is_position_missing(self, partition: TopicPartition, serial: int, where: PositionSource) -> bool:
        """Return whether the position asked for under this serial is still sought."""
        track = self._states.get(partition)
        return (
            track is not None
            and track.position_version == serial
            and track.position is None
            and track.position_source is where
        )

    def find_missing_positions(self, where: PositionSource) -> dict[TopicPartition, int]:
        """Return the partitions whose position is sought in this way, with the serial of the request."""
        return {
            partition: track.position_version
            for partition, track in self._states.items()
            if track.position is None and track.position_source is where
        }

    def collect_consumed(self) -> dict[TopicPartition, Position]:
        """Return the known positions: those up to which the user has had the records."""
        positions = {at: track.position for at, track in self._states.items() if track.position is not None}
        for record in reversed(self.unread):
            at = TopicPartition(record.topic, record.partition)
            if at in positions:
                positions[at] = Position(record.offset, record.leader_epoch)
        return positions

    def compute_lags(self) -> dict[TopicPartition, int]:
        """Return the number of offsets between each position and the high watermark, where both are known."""
        return {
            at: track.high_watermark - track.position.offset
            for at, track in self._states.items()
            if track.high_watermark is not None and track.position is not None
        }

    def set_preferred_replica(self, partition: TopicPartition, replica: int, expires_at_ms: int) -> None:
        """Read from the replica that the leader named; after that time the leader is asked again."""
        track = self._states[partition]
        track.preferred_read_replica, track.replica_expires_ms = replica, expires_at_ms

    def find_preferred_replica(self, partition: TopicPartition, now_ms: int) -> int | None:
        """Return the replica to read from, if the leader named one lately."""
        track = self._states[partition]
        if now_ms >= track.replica_expires_ms:
            track.preferred_read_replica = None
        return track.preferred_read_replica

    def clear_preferred_replicas(self, partitions: Iterable[TopicPartition]) -> None:
        """Read from the leaders."""
        for partition in partitions:
            if (track := self._states.get(partition)) is not None:
                track.preferred_read_replica = None

    def list_fetchable(self) -> Iterable[tuple[TopicPartition, TopicPartitionState, Position]]:
        """Return the partitions that may be fetched now."""
        return (
            (partition, track, track.position)
            for partition, track in self._states.items()
            if track.position is not None
            and not track.is_paused
            and not track.has_pending_fetch
            and (track.seek_range.until is None or track.position.offset < track.seek_range.until)
        )


def _without_epoch(position: Position | None) -> Position | None:
    return None if position is None else Position(position.offset)


class PartitionFetchParams(Value):
    """Fetch parameters of one partition. `topic_id` is nil where the cluster has none."""

    offset: int
    max_bytes: int
    leader_epoch: int | None
    last_fetched_epoch: int | None
    topic_id: UUID = NIL


class FetchRequestData(Value):
    """One request of a session: partitions to name, and partitions to remove.

    to_forget  each with the topic id under which the session has it: the topic may have been recreated
    """

    session_id: int
    epoch: int
    to_send: Mapping[TopicPartition, PartitionFetchParams]
    to_forget: Mapping[TopicPartition, UUID]


class FetchSessionHandler:
    """Client's half of a fetch session with one broker (KIP-227). One request is in flight at a time."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = INITIAL_SESSION_EPOCH
        self._session_partitions: dict[TopicPartition, PartitionFetchParams] = {}

    def build_request(self, params: Mapping[TopicPartition, PartitionFetchParams]) -> FetchRequestData:
        """Return the next request for `params`: everything in a new session, else only what changed.

        From Fetch 13 on the broker's session knows topics by id, before it by name. A partition whose topic
        has another id now begins a new session: it would be another partition to the one, the same to the
        other, and this is rare.
        """
        before, self._session_partitions = self._session_partitions, dict(params)
        changes = {p: want for p, want in params.items() if before.get(p) != want}
        if any(p in before and before[p].topic_id != want.topic_id for p, want in changes.items()):
            self._epoch = INITIAL_SESSION_EPOCH
        if self._epoch == INITIAL_SESSION_EPOCH:
            return FetchRequestData(self._id, self._epoch, params, {})
        to_forget = {p: want.topic_id for p, want in before.items() if p not in params}
        return FetchRequestData(self._id, self._epoch, changes, to_forget)

    def handle_response(self, error: int, session_id: int) -> None:
        """Continue the session after an answer, or begin a new one with the next request."""
        if error != ErrorCode.NONE:
            # KIP-227: the broker has no session with this id, or one at another epoch: begin anew.
            is_unknown_session = error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            self._id, self._epoch = (0 if is_unknown_session else self._id), INITIAL_SESSION_EPOCH
        elif session_id == 0:
            self._id, self._epoch = 0, INITIAL_SESSION_EPOCH
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == INT32_MAX else self._epoch + 1

    def handle_error(self) -> None:
        """Begin a new session, after a request without an answer or an answer about something else.

        It is unknown what the broker's session has.
        """
        self._epoch = INITIAL_SESSION_EPOCH
