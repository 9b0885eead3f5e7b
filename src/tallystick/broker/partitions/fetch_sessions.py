"""Incremental fetch sessions: requests and answers carry only changed partitions (KIP-227). Pure.

    request                          meaning
    id 0, epoch -1                   no session: a full request and a full answer
    any id, epoch 0                  drop the old session, if any; begin a new one with these partitions
    id, epoch -1                     drop the session; answer once more, in full
    id, epoch n > 0                  the n-th step of the session: partitions added, changed, forgotten

An answer within a session leaves out a partition that has no records, no error, and the high watermark and
log start offset that the client knows already.

A session ends with the connection that used it last, and all sessions together have a bounded number of
partitions (ADR 0012).

Source: KIP-227; FetchSession, FetchManager.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import Value

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

# As in Kafka: a session may be evicted for a new one after it was idle for this long.
EVICTION_AGE_MS: Final = 120_000

# Topic name, or topic id from version 13 on, and the partition.
FetchPartitionKey = tuple[str | uuid.UUID, int]


@dataclass(slots=True)
class CachedPartition:
    """A client's fetch position and limits for one partition, and the state it was last sent."""

    key: FetchPartitionKey
    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    sent_high_watermark: int = -1
    sent_log_start: int = -1

    def update_request_params(self, newer: "CachedPartition") -> None:
        """Apply a later request of the session for this partition."""
        self.offset, self.max_bytes = newer.offset, newer.max_bytes
        self.leader_epoch, self.last_fetched_epoch = newer.leader_epoch, newer.last_fetched_epoch

    def update_response_data(self, outcome: "PartitionReadResult") -> bool:
        """Return whether the answer must include this outcome, and note it as sent."""
        has_changed = (
            outcome.size > 0
            or outcome.has_diverging_epoch
            or self.sent_high_watermark != outcome.high_watermark
            or self.sent_log_start != outcome.log_start
        )
        self.sent_high_watermark, self.sent_log_start = outcome.high_watermark, outcome.log_start
        if outcome.error:
            # An error is repeated until it is gone, and the next success must be sent, too.
            self.sent_high_watermark = -1
            return True
        return has_changed


class PartitionReadResult(Value):
    """Result of reading one partition, as far as sessions need it."""

    size: int
    error: int
    high_watermark: int
    log_start: int
    has_diverging_epoch: bool = False  # a diverging epoch


@dataclass(slots=True)
class CachedFetchSession:
    """One client's session. `partitions` is in the order in which partitions are served."""

    session_id: int
    connection_id: int
    by_topic_id: bool
    created_ms: int
    used_ms: int
    epoch: int = 1
    partitions: dict[FetchPartitionKey, CachedPartition] = field(default_factory=dict)

    def update(self, partitions: Iterable[CachedPartition], forgotten: Iterable[FetchPartitionKey]) -> None:
        for newer in partitions:
            cached = self.partitions.get(newer.key)
            if cached is None:
                self.partitions[newer.key] = newer
            else:
                cached.update_request_params(newer)
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, key: FetchPartitionKey) -> None:
        """Move a served partition to the end, so that a full answer does not starve the others."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


class FetchContext(Value):
    """Partitions to read for one request. `is_incremental`: the answer leaves out unchanged partitions."""

    partitions: tuple[CachedPartition, ...]
    session: CachedFetchSession | None
    is_incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.session_id


class FetchSessionRequest(Value):
    """The session part of a Fetch request."""

    session_id: int
    epoch: int
    partitions: tuple[CachedPartition, ...]
    forgotten: tuple[FetchPartitionKey, ...]
    by_topic_id: bool


class FetchSessionCache:
    """All sessions of the broker, at most `slots` of them with `partitions_max` partitions in all."""

    def __init__(self, slots: int, partitions_max: Callable[[], int], new_id: Callable[[], int]) -> None:
        """Create an empty cache. `new_id` returns a random positive int32."""
        self._slots = slots
        self._partitions_max = partitions_max
        self._new_id = new_id
        self._sessions: dict[int, CachedFetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(s.partitions) for s in self._sessions.values())

    def drop(self, session_id: int) -> None:
        """End a session, if there is one of that id."""
        self._sessions.pop(session_id, None)

    def drop_connection(self, connection_id: int) -> None:
        """End the sessions of a connection that is lost."""
        for session in [each for each in self._sessions.values() if each.connection_id == connection_id]:
            self.drop(session.session_id)

    def create_context(
        self, start: FetchSessionRequest, connection_id: int, now_ms: int
    ) -> FetchContext | Reject:
        """Return the partitions to read for a request.

        Rejects with: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if start.epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.drop(start.session_id)
            session = None
            if start.epoch == INITIAL_EPOCH and start.partitions:
                session = self._create_session(start, connection_id, now_ms)
            return FetchContext(start.partitions, session, is_incremental=False)
        return self._continue_session(start, connection_id, now_ms)

    def _continue_session(
        self, start: FetchSessionRequest, connection_id: int, now_ms: int
    ) -> FetchContext | Reject:
        session = self._sessions.get(start.session_id)
        if session is None:
            return Reject(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {start.session_id} does not exist or was evicted; begin a new one",
            )
        if session.by_topic_id != start.by_topic_id:
            return Reject(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {start.session_id} began with topic"
                f" {'ids' if session.by_topic_id else 'names'}; begin a new one",
            )
        if session.epoch != start.epoch:
            return Reject(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {start.session_id} is at epoch {session.epoch}, but the request has"
                f" {start.epoch}; begin a new one",
            )
        added = sum(each.key not in session.partitions for each in start.partitions)
        if added and not self._has_room(added):
            self.drop(session.session_id)
            return Reject(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {start.session_id} ended: there is no room for {added} partitions more",
            )
        session.connection_id = connection_id
        session.update(start.partitions, start.forgotten)
        if not session.partitions:
            del self._sessions[session.session_id]
            return FetchContext((), None, is_incremental=False)
        session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
        self._touch(session, now_ms)
        return FetchContext(tuple(session.partitions.values()), session, is_incremental=True)

    def _has_room(self, partitions: int) -> bool:
        return self.partition_count + partitions <= self._partitions_max()

    def _create_session(
        self, start: FetchSessionRequest, connection_id: int, now_ms: int
    ) -> CachedFetchSession | None:
        size = len(start.partitions)
        while len(self._sessions) >= self._slots or not self._has_room(size):
            if not self._evict(size, now_ms):
                return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = CachedFetchSession(session_id, connection_id, start.by_topic_id, now_ms, now_ms)
        session.partitions = {partition.key: partition for partition in start.partitions}
        self._sessions[session_id] = session
        return session

    def _evict(self, size: int, now_ms: int) -> bool:
        """Make room for a session of `size` partitions, and return whether that worked.

        The least recently used session goes if it was idle for long, else a smaller one that has lived that
        long.
        """
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.used_ms > EVICTION_AGE_MS:
            del self._sessions[oldest.session_id]
            return True
        smallest = min(self._sessions.values(), key=lambda s: len(s.partitions))
        if len(smallest.partitions) < size and now_ms - smallest.created_ms > EVICTION_AGE_MS:
            del self._sessions[smallest.session_id]
            return True
        return False

    def _touch(self, session: CachedFetchSession, now_ms: int) -> None:
        """Mark a session as used, and keep all sessions in the order of their last use."""
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
