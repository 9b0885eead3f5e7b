"""The current state of one transactional producer, and the only place where it is replaced."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tallystick.client.errors import AbortRequired, ClientError, IllegalState, InvalidTxnState
from tallystick.client.producer.sequences.txn_context import RecordFlow
from tallystick.client.transactions.state import IllegalCall, State, TxnCall, TxnProducerState
from tallystick.kernel.errors import Effect

T = TypeVar("T")


class TxnStateHolder:
    """Holds `current`, which is replaced by calls, by answers and by failures. On one loop."""

    def __init__(self, flow: RecordFlow) -> None:
        self.current = TxnProducerState()
        self._flow = flow

    def apply_call(self, call: TxnCall) -> None:
        """Move to the state that a call leads to. Raises: the error of a call that is not legal [CLI-42]."""
        self.current = require_legal(self.current.apply_call(call))

    def mark_open(self) -> None:
        """Record that part of the transaction may be in the cluster."""
        if self.current.state is not State.FATAL:
            self.current = self.current.mark_open()

    def apply_failure(self, api: str, error: ClientError) -> None:
        """Apply the final failure of `api`; a transaction that fails by it accepts no more records."""
        was_open = self.current.state is State.IN_TRANSACTION
        self.current = self.current.apply_failure(api, error)
        if was_open and self.current.state is not State.IN_TRANSACTION:
            self._flow.close_gate(self.build_send_error)

    def build_send_error(self) -> ClientError:
        """Return the error for a record that cannot be sent."""
        refusal = self.current.apply_call(TxnCall.SEND)
        return (
            build_call_error(refusal)
            if isinstance(refusal, IllegalCall)
            else AbortRequired("the transaction ended")
        )

    async def run_step(self, api: str, step: Awaitable[T], cancelled: ClientError) -> T:
        """Await a step of a call; its failure changes the state as `apply_failure` says.

        Args:
            cancelled: the failure that a cancellation counts as.
        """
        try:
            return await step
        except ClientError as exc:
            self.apply_failure(api, exc)
            raise
        except asyncio.CancelledError:
            self.apply_failure(api, cancelled)
            raise

    async def run_part(self, api: str, request: Awaitable[None]) -> None:
        """Await a request that is part of the open transaction; its failure fails both [CLI-47]."""
        try:
            await request
        except ClientError as exc:
            if exc.effect is Effect.UNKNOWN:
                self.mark_open()
            self.apply_failure(api, exc)
            raise
        except asyncio.CancelledError:
            self.mark_open()
            self.apply_failure(api, AbortRequired(f"{api} was cancelled"))
            raise
        self.mark_open()


def require_legal(result: TxnProducerState | IllegalCall) -> TxnProducerState:
    """Return the state that a call leads to. Raise the error that the user gets if it is not legal."""
    if isinstance(result, IllegalCall):
        raise build_call_error(result)
    return result


def build_call_error(refusal: IllegalCall) -> ClientError:
    """Return the error that the user gets for a call that is not legal."""
    if refusal.must_abort:
        error: ClientError = AbortRequired(refusal.reason)
        error.__cause__ = refusal.cause
        return error
    if refusal.cause is not None:
        return refusal.cause
    return InvalidTxnState(refusal.reason) if refusal.is_invalid_txn_state else IllegalState(refusal.reason)
