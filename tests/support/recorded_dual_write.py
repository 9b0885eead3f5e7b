"""What one dual write does, in its order: messages to the database, requests, forced writes.

A broker in this process records its requests, their answers and its calls of fdatasync; a proxy before the
database, or a listener of SQLite's connection, records what the database is asked.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tallystick.broker.handlers.dispatch import RequestDispatcher
from tallystick.broker.server.request_context import RequestContext
from tallystick.protocol.apis import ApiKey

BLOCK: Final = "block"
DATABASE: Final = "database"
REQUEST: Final = "request"
SYNC: Final = "fdatasync"


@dataclass(frozen=True, slots=True)
class Event:
    """The beginning or the end of something, of one of the kinds above."""

    kind: str
    name: str = ""
    ends: bool = False


@dataclass(frozen=True)
class Costs:
    """What the caller of one dual write waits for.

    round_trips    times that the database is asked and answers
    requests       Kafka requests whose answers come while the caller is in its block, in order
    forced_writes  for each of them, the broker's calls of fdatasync between request and answer
    """

    round_trips: int
    requests: tuple[str, ...]
    forced_writes: tuple[int, ...]


@dataclass
class Recorder:
    """Events of all threads, in their order."""

    events: list[Event] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen_count: int = 0

    def is_quiet(self) -> bool:
        """Return whether nothing was recorded since the last call."""
        with self.lock:
            before, self.seen_count = self.seen_count, len(self.events)
            return before == self.seen_count

    def add(self, kind: str, name: str = "", *, ends: bool = False) -> None:
        with self.lock:
            self.events.append(Event(kind, name, ends))

    def on_database_data(self, data: bytes, is_answer: bool) -> None:
        """Record what a proxy forwards."""
        self.add(DATABASE, ends=is_answer)

    def on_statement(self, _: str) -> None:
        """Record a statement of a database in this process, which answers at once."""
        self.add(DATABASE)
        self.add(DATABASE, ends=True)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Mark the time that a caller spends in its block, the commit included."""
        self.add(BLOCK)
        yield
        self.add(BLOCK, ends=True)

    def costs(self) -> Costs:
        """Return the costs of the last block."""
        with self.lock:
            first, last = [at for at, event in enumerate(self.events) if event.kind == BLOCK][-2:]
            inside = self.events[first:last]
        database = [event.ends for event in inside if event.kind == DATABASE]
        turns = [
            after for before, after in zip([True, *database], database, strict=False) if before and not after
        ]
        waited = list(_find_waited(inside))
        return Costs(len(turns), tuple(name for name, _ in waited), tuple(count for _, count in waited))


def _find_waited(inside: list[Event]) -> Iterator[tuple[str, int]]:
    """Yield the requests that are answered in the block, with the forced writes in between."""
    for at, event in enumerate(inside):
        if event.kind != REQUEST or event.ends:
            continue
        answer = Event(REQUEST, event.name, ends=True)
        if answer in inside[at:]:
            between = inside[at : inside.index(answer, at)]
            yield event.name, between.count(Event(SYNC, ends=True))


def record_broker(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record the requests and forced writes of every broker that this process starts from now on."""
    dispatch, answer_later = RequestDispatcher.dispatch, RequestDispatcher._answer_later
    fdatasync: Callable[[int], None] = os.fdatasync

    def on_request(self: Any, frame: memoryview, peer: Any) -> Any:
        name = ApiKey(int.from_bytes(frame[:2], "big")).name
        recorder.add(REQUEST, name)
        answer = dispatch(self, frame, peer)
        if answer is None or isinstance(answer, list):
            recorder.add(REQUEST, name, ends=True)
        return answer

    async def on_answer(self: Any, spec: Any, context: RequestContext, body: Any, peer: Any) -> Any:
        answer = await answer_later(self, spec, context, body, peer)
        recorder.add(REQUEST, ApiKey(context.api_key).name, ends=True)
        return answer

    def on_sync(descriptor: int) -> None:
        recorder.add(SYNC)
        fdatasync(descriptor)
        recorder.add(SYNC, ends=True)

    monkeypatch.setattr(RequestDispatcher, "dispatch", on_request)
    monkeypatch.setattr(RequestDispatcher, "_answer_later", on_answer)
    monkeypatch.setattr(os, "fdatasync", on_sync)
