"""The name of a prepared transaction, as another system stores it beside its own decision. Pure.

Kafka's form is `producerId:epoch` in decimal digits, and the empty string for "nothing was prepared". The
pair is the one that signed the records; under version 2 it names no other transaction (KIP-890).
"""

import re
from typing import Final, Self

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT16_MAX, INT64_MAX, Identity, ProducerEpoch, ProducerId

# What `PreparedTxnState.toString` of Kafka writes; its reader takes more, but nobody writes more.
_FORM: Final = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,4})", re.ASCII)
_SHOWN_MAX: Final = 60


class BadPreparedTxnState(TallystickError, ValueError):
    """A text is not a prepared transaction's state. Never take it for "nothing": find out who wrote it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= _SHOWN_MAX else f"{self.text[:_SHOWN_MAX]}…"
        return (
            f"{shown!r} is not the state of a prepared transaction: that is empty, or producerId:epoch "
            f"with 0..{INT64_MAX} and 0..{INT16_MAX} in decimal digits"
        )


class PreparedTxnState:
    """What `prepare_transaction()` returns and `complete_transaction()` compares. Immutable, hashable.

    `str()` gives the text to store in the same database transaction as the data, and that text gives an
    equal state back. Equal means both numbers are equal; the empty state equals the empty state alone.
    Truth: is something named?

    Source: KIP-939 "KafkaProducer API Changes"; Kafka 4.3 `PreparedTxnState`.
    """

    __slots__ = ("_identity",)
    _identity: Identity | None

    def __init__(self, serialized_state: str | None = None) -> None:
        """Args:
            serialized_state: what `str()` of a state gave; None or empty for "nothing was prepared".

        Raises:
            BadPreparedTxnState: anything else, a sign, a space or a leading zero included.
        """
        self._identity = _parse(serialized_state) if serialized_state else None

    @classmethod
    def of(cls, identity: Identity | None) -> Self:
        """The state that names the transaction signed by `identity`."""
        state = cls()
        state._identity = identity
        return state

    @property
    def identity(self) -> Identity | None:
        """The pair that signed the records; None for the empty state."""
        return self._identity

    @property
    def producer_id(self) -> int | None:
        return None if self._identity is None else self._identity.producer_id

    @property
    def epoch(self) -> int | None:
        return None if self._identity is None else self._identity.epoch

    def __str__(self) -> str:
        return "" if self._identity is None else f"{self._identity.producer_id}:{self._identity.epoch}"

    def __repr__(self) -> str:
        return f"PreparedTxnState({str(self)!r})"

    def __bool__(self) -> bool:
        return self._identity is not None

    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, PreparedTxnState) else NotImplemented

    def __hash__(self) -> int:
        return hash((PreparedTxnState, self._identity))

    def __reduce__(self) -> tuple[object, ...]:
        return PreparedTxnState, (str(self),)


def _parse(text: str) -> Identity:
    found = _FORM.fullmatch(text)
    if found is None or int(found[1]) > INT64_MAX or int(found[2]) > INT16_MAX:
        raise BadPreparedTxnState(text)
    return Identity(ProducerId(int(found[1])), ProducerEpoch(int(found[2])))
