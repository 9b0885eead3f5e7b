"""Django: `dual_write_atomic`, which nests as `transaction.atomic` does.

    @require_POST
    @dual_write_atomic(writers)
    def pay(request: HttpRequest) -> HttpResponse:
        Payment.objects.create(...)
        current_part().send("payments", b"...")
        return HttpResponse(status=201)

The outermost block is a dual write of a pool over a DjangoStore: both sides are committed when it ends, and
neither if it raises. A block inside it is a savepoint; what is sent in it is held back until it ends, and is
dropped with its rows if it raises. So a function that opens a block of its own may be called from anywhere.

Callbacks of `transaction.on_commit` run once the database has committed, which decides both sides; never
after a rollback. A view that is decorated is exempt from ATOMIC_REQUESTS, whose block would end after this
one. Inside another `atomic` block of the alias the outermost block raises ManagedByWriter: that one would
commit later, or never.

Source: Django, `django/db/transaction.py`, `Atomic` and `non_atomic_requests`.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from django.db import transaction

from tallystick.dualwrite.block.transaction import Savepoint
from tallystick.dualwrite.blocking.pool import WriterPool
from tallystick.dualwrite.blocking.writer import Transaction, resolve_doubt
from tallystick.dualwrite.errors import ManagedByWriter, WriteInDoubt
from tallystick.dualwrite.stores.django import DjangoTransaction

A = ParamSpec("A")
R = TypeVar("R")

Part = Transaction[DjangoTransaction] | Savepoint
"""What sends in a block: the transaction in the outermost one, a savepoint in any other."""


_RUN_LATER: Final = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


class _OpenParts(threading.local):
    """The parts of this thread's open blocks by alias, and those blocks, the innermost one last."""

    def __init__(self) -> None:
        self.of_alias: dict[str, list[Part]] = {}
        self.blocks: list[AbstractContextManager[Part]] = []


_open_parts = _OpenParts()


def current_part(using: str = "default") -> Part:
    """Return what sends in the innermost block of this thread. Raises: ManagedByWriter outside of any."""
    parts = _open_parts.of_alias.get(using)
    if not parts:
        raise ManagedByWriter(
            f"no dual_write_atomic block of {using!r} is open in this thread: nothing was sent"
        )
    return parts[-1]


class DualWriteBlock:
    """A block as a context manager, and as a decorator. It keeps no state: threads may share it."""

    def __init__(self, writers: WriterPool[DjangoTransaction], using: str, *, wait_visible: bool) -> None:
        self._writers = writers
        self._using = using
        self._wait_visible = wait_visible

    def __enter__(self) -> Part:
        is_nested = bool(_open_parts.of_alias.get(self._using))
        block = _open_nested(self._using) if is_nested else self._open_outermost()
        part = block.__enter__()
        _open_parts.blocks.append(block)
        return part

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return _open_parts.blocks.pop().__exit__(kind, value, trace)

    def __call__(self, function: Callable[A, R]) -> Callable[A, R]:
        """Decorate a function, and exempt it from ATOMIC_REQUESTS if it is a view.

        Raises: TypeError for a coroutine function or a generator, which runs after its call has returned.
        """
        if any(is_late(function) for is_late in _RUN_LATER):
            raise TypeError(
                f"{function!r} runs after the block has ended, in no transaction: decorate the blocking "
                "function that it calls, with sync_to_async in a coroutine"
            )

        @wraps(function)
        def call(*args: A.args, **kwargs: A.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        exempt: Callable[A, R] = transaction.non_atomic_requests(using=self._using)(call)
        return exempt

    @contextmanager
    def _open_outermost(self) -> Iterator[Part]:
        with self._writers.writer() as writer:
            try:
                with ExitStack() as stack:
                    txn = stack.enter_context(writer.transaction(wait_visible=self._wait_visible))
                    if txn.database.connection.alias != self._using:
                        raise ManagedByWriter(
                            f"the writers are over {txn.database.connection.alias!r}, and the block is for "
                            f"{self._using!r}: pass using={txn.database.connection.alias!r}"
                        )
                    with _pushed(self._using, txn):
                        yield txn
            except WriteInDoubt as doubt:
                resolve_doubt(writer, doubt)


@contextmanager
def _open_nested(using: str) -> Iterator[Part]:
    """Open a savepoint in the transaction, and send what it has held back through the block around it."""
    parts = _open_parts.of_alias[using]
    outermost, around = parts[0], parts[-1]
    assert isinstance(outermost, Transaction)
    outermost.check_open()
    part = Savepoint(around.send, around.send_batch)
    with transaction.atomic(using=using):
        with _pushed(using, part):
            yield part
        for send in part.queued_sends:  # a refusal still rolls the savepoint back
            send()


@contextmanager
def _pushed(using: str, part: Part) -> Iterator[None]:
    parts = _open_parts.of_alias.setdefault(using, [])
    parts.append(part)
    try:
        yield
    finally:
        parts.remove(part)


def dual_write_atomic(
    writers: WriterPool[DjangoTransaction], *, using: str = "default", wait_visible: bool = False
) -> DualWriteBlock:
    """Return a block whose rows and records are committed together: `with` it, or decorate a function.

    `with` gives what sends in it; `current_part` gives it in a function that is called from there.

    Args:
        writers: a pool over a DjangoStore, recovered.
        using: the alias of that store.
        wait_visible: as of `WriterPool.transaction`.
    Raises: as WriterPool.transaction. If the outcome is in doubt, the block recovers, and raises only what is
        not committed, or not known.
    """
    return DualWriteBlock(writers, using, wait_visible=wait_visible)
