# Generated from dualwrite/aio/attempts.py by tools/async_to_sync.py. Do not edit it:
# change the source and run `make format`.
"""The runs of one piece of work, each in a transaction of its own, of which at most one is committed.

`retry_rules` decides after each failure; this module recovers, pauses and runs again. With an idempotency
key, a transaction begins with the key and ends with the result beside it.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from tallystick.client import jitter
from tallystick.dualwrite.errors import Halted, Torn, WriteInDoubt
from tallystick.dualwrite.rules.idempotency import (
    IdempotencyKey,
    KeyFound,
    KeyOfCall,
    KeyResult,
    KeyRule,
    check_keys_supported,
    describe_call,
    encode_result,
    get_default_scope,
)
from tallystick.dualwrite.rules.retry_rules import (
    KEY_CONFLICTS_MAX,
    NextStep,
    Retry,
    decide_next_step,
    to_retry,
)
from tallystick.dualwrite.stores.base import StoreTransaction
from tallystick.dualwrite.stores.refusals import is_conflict
from tallystick.dualwrite.transaction import call_work
from tallystick.metrics.dual_writes import WriteEvent

if TYPE_CHECKING:
    from tallystick.dualwrite.blocking.writer import DualWriter, Transaction

D = TypeVar("D", bound=StoreTransaction)
R = TypeVar("R")
A = ParamSpec("A")

_log = logging.getLogger("tallystick.dualwrite")


class Attempts(Generic[D, R]):
    """The runs of one piece of work on one writer."""

    def __init__(
        self,
        writer: DualWriter[D],
        work: Callable[[Transaction[D]], R],
        *,
        retry: Retry,
        key: IdempotencyKey | None = None,
    ) -> None:
        self._writer = writer
        self._work = work
        self._retry = retry
        self._key = key
        self._run_count = 0
        self._key_conflict_count = 0
        self._results: list[R] = []

    def run(self, *, wait_visible: bool = False) -> R:
        """Run the work until it is committed, or must not be run again. Return its result."""
        while True:
            self._run_count += 1
            self._results.clear()
            try:
                with self._writer.transaction(wait_visible=wait_visible) as txn:
                    self._results.append(self._run_work(txn))
            except KeyFound as exc:
                self._writer.check_key(exc.kept)
                return exc.kept.result  # type: ignore[return-value]
            except Exception as exc:
                next_step = self._conclude(exc)
                if next_step is NextStep.RETURN:
                    return self._results[0]
                if next_step is NextStep.RAISE:
                    raise
                _log.info("run %d is not committed, and is repeated: %r", self._run_count, exc)
            else:
                return self._results[0]
            self._writer.note(WriteEvent.RETRIED)
            self._pause()

    def _run_work(self, txn: Transaction[D]) -> R:
        """Run the work, unless its key is there [DW-16]. Raises: KeyFound, which rolls both halves back."""
        key = self._key
        if key is None:
            return call_work(self._work, txn)
        database: Any = txn.database
        try:
            stored = txn.run_step("claim key", database.claim_key, key)
        except Exception as exc:
            # Another call with this key has ended meanwhile, so a further run sees what it has committed.
            if is_conflict(exc) and self._key_conflict_count < KEY_CONFLICTS_MAX:
                self._key_conflict_count += 1
            raise
        if stored is not None:
            raise KeyFound(KeyResult.parse(key, stored))
        result = call_work(self._work, txn)
        txn.kept_result = key, encode_result(key, result)
        return result

    def _conclude(self, failure: Exception) -> NextStep:
        """Decide what follows a failure, and recover if that is needed for it."""
        is_own_doubt = self._writer.owns_doubt(failure)
        next_step = self._decide(failure, is_own_doubt=is_own_doubt, is_recovered=False)
        if next_step is NextStep.RECOVER:
            recover_after(self._writer, failure)
            next_step = self._decide(failure, is_own_doubt=is_own_doubt, is_recovered=True)
        if next_step is NextStep.RUN_AGAIN and not self._writer.ready:
            recover_after(self._writer, failure)
        return next_step

    def _decide(self, failure: Exception, *, is_own_doubt: bool, is_recovered: bool) -> NextStep:
        return decide_next_step(
            failure,
            is_own_doubt=is_own_doubt,
            is_recovered=is_recovered,
            is_last=self._run_count - self._key_conflict_count >= self._retry.attempts,
        )

    def _pause(self) -> None:
        uniform = self._retry.random or jitter.uniform
        pause_ms = self._retry.pause_ms(self._run_count, uniform())
        if pause_ms > 0:
            time.sleep(pause_ms / 1000)


def recover_after(writer: DualWriter[D], failure: Exception) -> None:
    """Recover a writer after a failure, which may be a doubt that this resolves.

    Raises: Torn, Halted. `failure`, caused by what the recovery raised: its outcome may be known by now.
    """
    try:
        _log.info("%s", writer.recover())
    except Torn as exc:
        doubt = failure.states if isinstance(failure, WriteInDoubt) else {}
        exc.is_of_this_block = any(doubt.get(name) == state for name, state in exc.states.items())
        raise
    except Halted:
        raise
    except Exception as exc:
        raise failure from exc


def resolve_doubt(writer: DualWriter[D], doubt: WriteInDoubt) -> None:
    """Return if the transaction of a writer that its commit left in doubt is committed after all.

    Raises: `doubt` if it is not, or is that of another writer; as `recover_after`.
    """
    if not writer.owns_doubt(doubt):
        raise doubt
    recover_after(writer, doubt)
    if decide_next_step(doubt, is_own_doubt=True, is_recovered=True, is_last=True) is not NextStep.RETURN:
        raise doubt


class WorkRunner(Protocol[D]):
    """What runs work in transactions: a writer or a pool."""

    def run(
        self,
        work: Callable[[Transaction[D]], R],
        *,
        retries: Retry | int = 0,
        wait_visible: bool = False,
        idempotency_key: IdempotencyKey | None = None,
    ) -> R: ...


def decorate_work(
    runner: WorkRunner[D],
    store: object,
    work: Callable[Concatenate[Transaction[D], A], R],
    *,
    retry: Retry | int,
    key_rule: KeyRule | None,
    scope: str | None,
    wait_visible: bool,
) -> Callable[A, R]:
    """Return a function that runs `work` in a transaction of `runner`. It takes the other arguments.

    Raises: BadConfig, ValueError, NotSupported for rules that cannot hold.
    """
    rule, signature = to_retry(retry), describe_call(work)
    key_of_call: KeyOfCall | None = None
    if key_rule is not None:
        check_keys_supported(store)
        key_of_call = KeyOfCall(key_rule, scope or get_default_scope(work), signature)

    @functools.wraps(work)
    def call(*args: A.args, **kwargs: A.kwargs) -> R:
        key = None if key_of_call is None else key_of_call(args, kwargs)

        def work_once(txn: Transaction[D]) -> R:
            return work(txn, *args, **kwargs)

        return runner.run(work_once, retries=rule, wait_visible=wait_visible, idempotency_key=key)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
