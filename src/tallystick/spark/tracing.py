"""Traces of Spark batches, and their way to the tasks.

The driver begins a batch in one process, tasks write it in others, and for `format("tallystick")` a third one
decides it. The batch's trace travels in the pickled task and in the commit messages. As in `client.tracing`,
`tracer` is None until OpenTelemetry is switched on, and never raises. Spark starts the Python processes of
tasks itself, so the option `tracing.setup` names a function that switches it on in each of them.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Final, Protocol, Self

from tallystick.spark.protocol.committable import Job, Vote

_log = logging.getLogger("tallystick.spark")

Carrier = Mapping[str, str]
"""A trace context as texts by name; empty without one."""


class PartTrace(Protocol):
    """A batch, or a part of it in one process: a context manager around it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, exc: BaseException | None, trace: object, /) -> None: ...

    def describe_votes(self, votes: Iterable[Vote | None]) -> None:
        """Note what tasks have written."""


class BatchTracer(Protocol):
    """A tracer of batches."""

    def trace_part(self, name: str, prefix: str, job: Job | None) -> PartTrace:
        """Trace a batch or a part of it."""

    def resume(self, carrier: Carrier) -> AbstractContextManager[object]:
        """Continue in the block a trace of another process."""

    def carry(self) -> Carrier:
        """Return the current trace, for another process."""


class _UntracedBatch:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def describe_votes(self, votes: Iterable[Vote | None]) -> None:
        pass


tracer: BatchTracer | None = None
"""The process's tracer of batches; None: nothing is traced."""

NO_CARRIER: Final[Carrier] = {}
_UNTRACED: Final[PartTrace] = _UntracedBatch()
_SETUPS_DONE: Final[set[str]] = set()


def trace_part(name: str, prefix: str, job: Job | None = None) -> PartTrace:
    """Trace a batch or a part of it, if there is a tracer."""
    return _UNTRACED if (now := tracer) is None else now.trace_part(name, prefix, job)


def resume(carrier: Carrier) -> AbstractContextManager[object]:
    """Continue in the block a trace of another process, if there is one and a tracer."""
    return _UNTRACED if (now := tracer) is None or not carrier else now.resume(carrier)


def carry() -> Carrier:
    """Return the current trace, for another process; empty without a tracer."""
    return NO_CARRIER if (now := tracer) is None else now.carry()


def set_up(setup: str | None) -> None:
    """Call the function that the option `tracing.setup` names, once in this process.

    It is the user's, and switches OpenTelemetry on. A failure is logged: the rows matter more than their
    trace.
    """
    if setup is None or tracer is not None or setup in _SETUPS_DONE:
        return
    _SETUPS_DONE.add(setup)
    try:
        _load_setup(setup)()
    except Exception:
        _log.warning("tracing.setup: %s failed; this process is not traced", setup, exc_info=True)


def _load_setup(setup: str) -> Callable[[], object]:
    module, _, name = setup.partition(":")
    function: Callable[[], object] = getattr(import_module(module), name)
    return function
