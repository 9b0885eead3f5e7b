"""Prepared transaction state: the name that an external system stores with its own decision. Pure.

Kafka's form is `producerId:epoch` in decimal digits, and the empty string for "nothing was prepared".
Producer id and epoch are those that signed the records; under version 2 they name no other transaction
(KIP-890).
"""

import re
from typing import Final, Self

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.ids import INT16_MAX, INT64_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch

# The form that Kafka's `PreparedTxnState.toString` writes; Kafka's parser accepts more.
_PATTERN: Final = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,4})", re.ASCII)
_TEXT_LENGTH_MAX: Final = 60


class BadPreparedTxnState(TallystickError, ValueError):
    """The text is not a prepared transaction's state. Never treat it as "nothing": find out what wrote it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        text = self.text if len(self.text) <= _TEXT_LENGTH_MAX else f"{self.text[:_TEXT_LENGTH_MAX]}…"
        return (
            f"{text!r} is not the state of a prepared transaction: that is empty, or producerId:epoch "
            f"with 0..{INT64_MAX} and 0..{INT16_MAX} in decimal digits"
        )


class PreparedTxnState:
    """State that `prepare_transaction()` returns and `complete_transaction()` compares. Immutable, hashable.

    `str()` gives the text to store in the same database transaction as the data, and an equal state can be
    made from that text. States are equal if both numbers are equal; the empty state equals only the empty
    state. A state is true if it names a transaction.

    Source: KIP-939 "KafkaProducer API Changes"; Kafka 4.3 `PreparedTxnState`.
    """

    __slots__ = ("_identity",)
    _identity: ProducerIdAndEpoch | None

    def __init__(self, serialized_state: str | None = None) -> None:
        """Parse a stored state.

        Args:
            serialized_state: the `str()` of a state; None or empty for "nothing was prepared".

        Raises:
            BadPreparedTxnState: anything else, including a sign, a space or a leading zero.
        """
        self._identity = _parse(serialized_state) if serialized_state else None

    @classmethod
    def of(cls, identity: ProducerIdAndEpoch | None) -> Self:
        """Return the state that names the transaction signed by `identity`."""
        state = cls()
        state._identity = identity
        return state

    @property
    def identity(self) -> ProducerIdAndEpoch | None:
        """Producer id and epoch that signed the records; None for the empty state."""
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


def _parse(text: str) -> ProducerIdAndEpoch:
    match = _PATTERN.fullmatch(text)
    if match is None or int(match[1]) > INT64_MAX or int(match[2]) > INT16_MAX:
        raise BadPreparedTxnState(text)
    return ProducerIdAndEpoch(ProducerId(int(match[1])), ProducerEpoch(int(match[2])))
