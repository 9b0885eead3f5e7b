"""Idempotency keys: work that is called again under the same key returns its first result. Pure.

The key is a row in the database of the dual write, inserted by the transaction of the work. So it is
committed with both sides or not at all, and outlives every process. A call that meets the key of another
one waits for the end of that transaction.

Beside the result, the row names the Kafka transactions of the work. Where a cluster ends a transaction by
itself, the database may have committed what Kafka has aborted, and then the key must not answer for records
that no one will ever read: a call that finds the key compares both sides first [DW-28].
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto
from typing import Any, Final
from uuid import UUID

from tallystick.client.errors import NotSupported
from tallystick.client.transactions.prepared import PreparedTxnState
from tallystick.dualwrite.errors import BadResult, CorruptRow
from tallystick.dualwrite.rules.model import StoredState
from tallystick.dualwrite.rules.recovery import ClusterSide, Finding, compare_sides
from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value

KEY_BYTES_MAX: Final = 750
"""Length of a key, and of a scope, in UTF-8."""

KeyRule = Callable[..., str] | str
"""What the key of a call is: a function of the call's arguments, or the name of one of its parameters."""


class IdempotencyKey(Value):
    """A key within its scope: the same key in another scope is another one.

    scope  what is done; by default the module and name of the decorated function
    key    which one it is: an order's number, a task's id
    """

    scope: str
    key: str

    def check(self) -> None:
        """Raise ValueError for what a database may cut, change or refuse: then two keys may become one."""
        for name, text in (("scope", self.scope), ("key", self.key)):
            if not isinstance(text, str):
                raise TypeError(f"idempotency {name}: {text!r} is a {type(text).__name__}, not a str")
            size = len(text.encode("utf-8", "surrogatepass"))
            if not 1 <= size <= KEY_BYTES_MAX:
                raise ValueError(f"idempotency {name}: {size} bytes are not 1..{KEY_BYTES_MAX}")
            if "\0" in text or any("\ud800" <= each <= "\udfff" for each in text):
                raise ValueError(f"idempotency {name}: {text!r} has a character that databases do not keep")

    def __str__(self) -> str:
        return f"{self.key!r} of {self.scope}"


class KeyResult(Value):
    """The value stored with a key: the result as JSON, and the Kafka transactions of the work.

    states  by transactional id; empty if no record was sent, and in rows of an earlier version
    """

    key: IdempotencyKey
    text: str
    states: Mapping[str, PreparedTxnState]

    def format(self) -> str:
        """Return the text for the row: the result in the first line, the transactions in a second one."""
        if not self.states:
            return self.text
        return f"{self.text}\n{json.dumps({name: str(state) for name, state in self.states.items()})}"

    @property
    def result(self) -> object:
        return json.loads(self.text)

    @classmethod
    def parse(cls, key: IdempotencyKey, stored: str) -> "KeyResult":
        """Parse the result of `format`. JSON text of a result has one line. Raises: CorruptRow."""
        text, _, states = stored.partition("\n")
        try:
            named = {str(name): PreparedTxnState(state) for name, state in json.loads(states or "{}").items()}
        except (AttributeError, TallystickError, TypeError, ValueError) as exc:
            raise CorruptRow(str(key), f"its transactions: {states[:200]!r}") from exc
        return cls(key, text, named)


class KeyFound(TallystickError):
    """The work was done before under this key: nothing of it is done again. Raised inside the block only."""

    def __init__(self, kept: KeyResult) -> None:
        super().__init__(kept)
        self.kept = kept


_KEYS_AT_WORK: Final[ContextVar[tuple[tuple[object, IdempotencyKey], ...]]] = ContextVar(
    "tallystick_keys_at_work", default=()
)


@contextmanager
def note_key(store: object, key: IdempotencyKey | None) -> Iterator[None]:
    """Record the key of a call while it runs. Raises: ValueError within a call of the same store and key.

    That call would wait for the end of the transaction that it is in.
    """
    store = getattr(store, "wrapped_store", store)
    keys = _KEYS_AT_WORK.get()
    if any(each is store and noted == key for each, noted in keys):
        raise ValueError(f"idempotency key {key}: it is that of the call that this one is made in")
    token = _KEYS_AT_WORK.set(keys if key is None else (*keys, (store, key)))
    try:
        yield
    finally:
        _KEYS_AT_WORK.reset(token)


class KeyOutcome(Enum):
    """Outcome of the Kafka transaction that was committed with a key."""

    COMMITTED = auto()  # or will be, by the writer of the id or its recovery
    OPEN = auto()  # the database has committed it; Kafka has not, and may abort it
    ABORTED = auto()
    UNKNOWN = auto()  # only a recovery of its id finds out


def assess_key(state: PreparedTxnState, row: StoredState, side: ClusterSide | None) -> KeyOutcome | None:
    """Compare a transaction that was committed with a key with the row of its id and the cluster.

    A row that is settled, or names another transaction, is proof enough: a writer records a later one only
    when it knows how the one before has ended, or was told to accept it.

    Args:
        side: None if the cluster was not asked.
    Returns: None if only the cluster knows.
    """
    if row.state != state or row.settled:
        return KeyOutcome.COMMITTED
    if side is None:
        return None
    finding = compare_sides(row, side)
    if row.timeout_ms is None and row.notes and finding in (Finding.DECIDED, Finding.UNSEEN):
        return KeyOutcome.COMMITTED  # KIP-939: nothing but its own client, or an operator, ends it
    return _KEY_OUTCOMES.get(finding, KeyOutcome.UNKNOWN)


_KEY_OUTCOMES: Final = {
    Finding.FINISHED: KeyOutcome.COMMITTED,
    Finding.STALE: KeyOutcome.COMMITTED,  # its writer has gone on to another transaction
    Finding.DECIDED: KeyOutcome.OPEN,
    Finding.FORCED: KeyOutcome.ABORTED,
    Finding.OVERRULED: KeyOutcome.ABORTED,
}


def check_keys_supported(store: object) -> None:
    """Raise NotSupported unless the store can keep idempotency keys next to the rows.

    The store of a leased id hands out the transactions of the one that it wraps, which alone matter here.
    """
    store = getattr(store, "wrapped_store", store)
    if not hasattr(store, "forget_idempotency_keys"):
        name = type(store).__name__
        raise NotSupported(
            "idempotency_key", f"a table of keys in {name}: SqlStore, AsyncSqlStore and DjangoStore have one"
        )


def encode_result(key: IdempotencyKey, result: object) -> str:
    """Return a result as JSON text. Raises: BadResult unless the text gives back an equal result."""
    try:
        text = json.dumps(result, allow_nan=False)
        is_kept = _is_same(json.loads(text), result)
    except (TypeError, ValueError, RecursionError) as exc:
        raise BadResult(f"{_name_result(key, result)}: {exc}; {_KEPT_TEXT}") from exc
    if not is_kept:
        raise BadResult(f"{_name_result(key, result)} would come back as {text[:200]}; {_KEPT_TEXT}")
    return text


_KEPT_TEXT: Final = (
    "neither side is committed. It is kept as JSON with the key, for calls with the same key: return None, "
    "text, numbers, lists, or dicts with text as keys"
)


def _name_result(key: IdempotencyKey, result: object) -> str:
    return f"{key}: the result, a {type(result).__name__},"


def _is_same(kept: Any, result: Any) -> bool:
    """Return whether both are equal and of the same types: an enumeration's member equals its bare value."""
    if type(kept) is not type(result):
        return False
    if isinstance(kept, list):
        return len(kept) == len(result) and all(map(_is_same, kept, result))
    if isinstance(kept, dict):
        names = all(map(_is_same, kept, result))
        return len(kept) == len(result) and names and all(map(_is_same, kept.values(), result.values()))
    return bool(kept == result)


def describe_call(work: Callable[..., object]) -> inspect.Signature:
    """Return the signature of calls of decorated work: without the transaction, its first parameter.

    Raises: ValueError if it takes no positional parameter.
    """
    signature = inspect.signature(work)
    parameters = list(signature.parameters.values())
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in kinds:
        raise ValueError(f"{_get_name(work)}: its first parameter must be the transaction")
    return signature.replace(parameters=parameters[1:])


def get_default_scope(work: Callable[..., object]) -> str:
    """Return the module and name of a function."""
    return f"{getattr(work, '__module__', '')}.{_get_name(work)}"


def _get_name(work: Callable[..., object]) -> str:
    return str(getattr(work, "__qualname__", type(work).__qualname__))


class KeyOfCall:
    """Determines the key of each call of decorated work."""

    def __init__(self, rule: KeyRule, scope: str, call: inspect.Signature) -> None:
        """Check the rule. Raises: ValueError if it names a parameter that the work does not have."""
        if isinstance(rule, str) and rule not in call.parameters:
            raise ValueError(f"idempotency_key={rule!r}: {scope} has no such parameter after the transaction")
        self._rule = rule
        self._scope = scope
        self._call = call

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> IdempotencyKey:
        """Return the key of a call with these arguments. Raises: TypeError, ValueError."""
        if isinstance(self._rule, str):
            bound = self._call.bind(*args, **kwargs)
            bound.apply_defaults()
            value = bound.arguments[self._rule]
            text = str(value) if isinstance(value, int | UUID) else value
        else:
            text = self._rule(*args, **kwargs)
        key = IdempotencyKey(self._scope, text)
        key.check()
        return key
