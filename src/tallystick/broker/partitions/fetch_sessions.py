"""Incremental fetch sessions: requests and answers carry only changed partitions (KIP-227). Pure.

    request                          meaning
    id 0, epoch -1                   no session: a full request and a full answer
    any id, epoch 0                  drop the old session, if any; begin a new one with these partitions
    id, epoch -1                     drop the session; answer once more, in full
    id, epoch n > 0                  the n-th step of the session: partitions added, changed, forgotten

An answer within a session leaves out a partition that has no records, no error, and the high watermark and
log start offset that the client knows already.

Source: KIP-227; FetchSession, FetchManager.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tallystick.kernel.codes import ErrorCode
from tallystick.kernel.errors import Reject
from tallystick.kernel.ids import INT32_MAX
from tallystick.kernel.value import frozen

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1

# As in Kafka: a session may be evicted for a new one after it was idle for this long.
EVICTION_AGE_MS: Final = 120_000

# Topic name, or topic id from version 13 on, and the partition.
Key = tuple[str | uuid.UUID, int]


@dataclass(slots=True)
class Wanted:
    """A client's fetch position and limits for one partition, and the state it was last sent."""

    key: Key
    offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    told_high_watermark: int = -1
    told_log_start: int = -1

    def take_over(self, newer: "Wanted") -> None:
        """Apply a later request of the session for this partition."""
        self.offset, self.max_bytes = newer.offset, newer.max_bytes
        self.leader_epoch, self.last_fetched_epoch = newer.leader_epoch, newer.last_fetched_epoch

    def worth_telling(self, outcome: "Outcome") -> bool:
        """Return whether the answer must include this outcome, and note it as sent."""
        changed = (
            outcome.size > 0
            or outcome.must_tell
            or self.told_high_watermark != outcome.high_watermark
            or self.told_log_start != outcome.log_start
        )
        self.told_high_watermark, self.told_log_start = outcome.high_watermark, outcome.log_start
        if outcome.error:
            # An error is repeated until it is gone, and the next success must be sent, too.
            self.told_high_watermark = -1
            return True
        return changed


@frozen
class Outcome:
    """Result of reading one partition, as far as sessions need it."""

    size: int
    error: int
    high_watermark: int
    log_start: int
    must_tell: bool = False  # a diverging epoch


@dataclass(slots=True)
class Session:
    """One client's session. `wanted` is in the order in which partitions are served."""

    session_id: int
    by_topic_id: bool
    created_ms: int
    used_ms: int
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict)

    def step(self, added: Iterable[Wanted], forgotten: Iterable[Key]) -> None:
        for newer in added:
            known = self.wanted.get(newer.key)
            if known is None:
                self.wanted[newer.key] = newer
            else:
                known.take_over(newer)
        for key in forgotten:
            self.wanted.pop(key, None)

    def had_data(self, key: Key) -> None:
        """Move a served partition to the end, so that a full answer does not starve the others."""
        wanted = self.wanted.pop(key, None)
        if wanted is not None:
            self.wanted[key] = wanted


@frozen
class Plan:
    """Partitions to read for one request. `incremental`: the answer leaves out unchanged partitions."""

    wanted: tuple[Wanted, ...]
    session: Session | None
    incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.session_id


@frozen
class FetchStart:
    """The session part of a Fetch request."""

    session_id: int
    epoch: int
    wanted: tuple[Wanted, ...]
    forgotten: tuple[Key, ...]
    by_topic_id: bool


class FetchSessions:
    """All sessions of the broker, at most `slots` of them."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        """Create an empty cache. `new_id` returns a random positive int32."""
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(s.wanted) for s in self._sessions.values())

    def plan(self, start: FetchStart, now_ms: int) -> Plan | Reject:
        """Return the partitions to read for a request.

        Rejects with: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR.
        """
        if start.epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(start.session_id, None)
            session = None
            if start.epoch == INITIAL_EPOCH and start.wanted:
                session = self._create(start, now_ms)
            return Plan(start.wanted, session, incremental=False)
        return self._step(start, now_ms)

    def _step(self, start: FetchStart, now_ms: int) -> Plan | Reject:
        session = self._sessions.get(start.session_id)
        if session is None:
            return Reject(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"no fetch session {start.session_id}")
        if session.by_topic_id != start.by_topic_id:
            return Reject(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"session {start.session_id} began with topic {'ids' if session.by_topic_id else 'names'}",
            )
        if session.epoch != start.epoch:
            return Reject(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session {start.session_id} is at epoch {session.epoch}, the request at {start.epoch}",
            )
        session.step(start.wanted, start.forgotten)
        if not session.wanted:
            del self._sessions[session.session_id]
            return Plan((), None, incremental=False)
        session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
        self._touch(session, now_ms)
        return Plan(tuple(session.wanted.values()), session, incremental=True)

    def _create(self, start: FetchStart, now_ms: int) -> Session | None:
        if len(self._sessions) >= self._slots and not self._evict(len(start.wanted), now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = Session(session_id, start.by_topic_id, now_ms, now_ms)
        session.wanted = {wanted.key: wanted for wanted in start.wanted}
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
        smallest = min(self._sessions.values(), key=lambda s: len(s.wanted))
        if len(smallest.wanted) < size and now_ms - smallest.created_ms > EVICTION_AGE_MS:
            del self._sessions[smallest.session_id]
            return True
        return False

    def _touch(self, session: Session, now_ms: int) -> None:
        """Mark a session as used, and keep all sessions in the order of their last use."""
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
