"""Hooks for a tracer of the clients' work, and the clients whose metrics it may read.

Nothing here knows OpenTelemetry: `tallystick.otel` sets `tracer` when it is switched on. Until then a client
compares one name with None in each call, and that is all. A tracer's methods never raise: a failure to report
must not become a failure of what is reported [OTEL-1].
"""

from collections.abc import Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from tallystick.client.producer.batches.arrow_rows import is_arrow_array
from tallystick.client.producer.batches.columns import ArrowColumn
from tallystick.client.producer.batches.delivery import BatchDelivery, Delivery

R = TypeVar("R")
S = TypeVar("S", Delivery, BatchDelivery, list[BatchDelivery])

HeaderPairs = Iterable[tuple[str, bytes | None]]


class SendTrace(Protocol):
    """One call of `send`, `send_batch` or `send_arrow`, as a context manager around it.

    headers  the caller's, and those that carry the trace to the readers of the records
    """

    headers: tuple[tuple[str, bytes | None], ...]

    def __enter__(self) -> "SendTrace": ...
    def __exit__(self, *exc_info: object) -> None: ...

    def follow(self, delivery: S) -> S:
        """End with this delivery, and not with the call; return it."""


class ClientTracer(Protocol):
    """A tracer of producers and consumers."""

    def trace_send(
        self, client_id: str, topic: str | None, headers: HeaderPairs | None, count: int | None
    ) -> SendTrace:
        """Return the trace of a call that sends; see `trace_send` below. For one record `count` is None."""

    def trace_call(self, call: str, transactional_id: str) -> AbstractContextManager[object]:
        """Trace a call on a transaction: a key of `otel.conventions.CALL_NAMES`."""

    async def trace_poll(self, client_id: str, group: str | None, poll: Coroutine[Any, Any, R]) -> R:
        """Await `poll`, and report the records that it returns, if any, or its failure."""

    async def trace_commit(self, client_id: str, group: str | None, commit: Coroutine[Any, Any, R]) -> R:
        """Await a consumer's commit of offsets."""


class MeteredClient(Protocol):
    """A client with metrics."""

    def metrics(self) -> dict[str, float]:
        """Return metrics by Kafka's names."""


class _UntracedSend:
    """A call that sends, without a tracer."""

    __slots__ = ("headers",)

    def __init__(self, headers: HeaderPairs | None) -> None:
        self.headers = () if headers is None else tuple(headers)

    def __enter__(self) -> "_UntracedSend":
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def follow(self, delivery: S) -> S:
        return delivery


tracer: ClientTracer | None = None
"""The process's tracer of clients; None: nothing is traced."""

PRODUCERS: Final[WeakKeyDictionary[MeteredClient, str]] = WeakKeyDictionary()
CONSUMERS: Final[WeakKeyDictionary[MeteredClient, str]] = WeakKeyDictionary()
"""The clients of this process with their client ids, for as long as anything refers to them."""

_NOTHING: Final = nullcontext()


def trace_send(client_id: str, topic: str | None, headers: HeaderPairs | None, count: int) -> SendTrace:
    """Trace a call that sends many records, if there is a tracer.

    Args:
        topic: None if the rows name it.
        headers: of each record; None if no header can be added to them.
        count: the number of records.
    """
    return (
        _UntracedSend(headers)
        if (now := tracer) is None
        else now.trace_send(client_id, topic, headers, count)
    )


def trace_call(call: str, transactional_id: str) -> AbstractContextManager[object]:
    """Trace a call on a transaction, if there is a tracer."""
    return _NOTHING if (now := tracer) is None else now.trace_call(call, transactional_id)


def trace_columns(
    client_id: str,
    topic: str,
    values: "Sequence[Any] | ArrowColumn",
    headers: Iterable[tuple[str, bytes | None]],
) -> SendTrace:
    """Trace a `send_batch`. Arrow arrays without headers are sent without any, at their own speed."""
    pairs = tuple(headers)
    if not pairs and is_arrow_array(values):
        return trace_send(client_id, topic, None, len(values))
    return trace_send(client_id, topic, pairs, len(values))
