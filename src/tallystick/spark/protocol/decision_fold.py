"""Fold of the decision topic into the last decision of one prefix, or of every one. Pure.

All prefixes share one partition. An open transaction of one query holds back the last stable offset, and
would hide the decisions of all other queries from a `read_committed` reader. So the partition is read
uncommitted up to its high watermark, and its control records tell which of a prefix's records count:
a transactional record counts once the COMMIT marker of its producer id is read [SPK-24]. The result is
complete after a claim of the prefix: the claim ends what an earlier driver had open, and is answered when the
markers are written.

The producer id is enough to match a record and its marker: a producer has one transaction at a time, and
under transaction.version 2 the marker's epoch is one above the record's (KIP-890). Compaction keeps the
marker of every record that it keeps.

    P         a Decision, written in a transaction of P/coordinator; empty: the prefix was given up
    P#noted   a Noted, of a prefix whose decisions are in a database, written like P#done once a decision is
              taken there; empty: the prefix was given up
    P#done    the nonce of a completed decision, written outside a transaction: it is true no matter which
              driver wrote it, and that of an older decision says nothing about the last

Source: docs/design/spark-sink.md.
"""

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from tallystick.kernel.value import Value
from tallystick.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    ControlType,
    check_batch,
    iter_records,
    read_header,
    read_marker,
)
from tallystick.spark.protocol.committable import (
    Decision,
    DecisionNote,
    decode_decision,
    decode_decision_note,
)
from tallystick.spark.protocol.errors import BadCommittable

_NOTE_SUFFIX: Final = "#noted"
_DONE_SUFFIX: Final = "#done"  # no prefix has this character


def build_decision_key(prefix: str) -> bytes:
    return prefix.encode()


def build_done_key(prefix: str) -> bytes:
    return (prefix + _DONE_SUFFIX).encode()


def note_key(prefix: str) -> bytes:
    return (prefix + _NOTE_SUFFIX).encode()


class DecisionState(Value, kw_only=True):
    """The state of a prefix in the log: its last decision, and whether that is known to be completed.

    note             the cluster's note of the last decision, where decisions are in a database
    completed_nonce  of the last decision that is noted in the cluster as completed
    """

    decision: Decision | None = None
    is_complete: bool = False
    note: DecisionNote | None = None
    completed_nonce: str | None = None


class _KeyKind(Enum):
    DECISION = auto()
    DONE = auto()
    NOTE = auto()


_KIND_BY_SUFFIX: Final = {
    "": _KeyKind.DECISION,
    _DONE_SUFFIX: _KeyKind.DONE,
    _NOTE_SUFFIX: _KeyKind.NOTE,
}


class _PrefixFold:
    """The records of one prefix that count so far."""

    __slots__ = ("_decoded_decision", "completed_nonce", "decision_bytes", "note_bytes")

    def __init__(self) -> None:
        self.decision_bytes: bytes | None = None
        self.completed_nonce: str | None = None
        self.note_bytes = b""
        self._decoded_decision: tuple[bytes, Decision] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.decision_bytes and not self.note_bytes

    @property
    def state(self) -> DecisionState:
        """State of the prefix. Raises: BadCommittable."""
        note = decode_decision_note(self.note_bytes) if self.note_bytes else None
        if not self.decision_bytes:
            return DecisionState(note=note, completed_nonce=self.completed_nonce if note else None)
        if self._decoded_decision is None or self._decoded_decision[0] != self.decision_bytes:
            self._decoded_decision = self.decision_bytes, decode_decision(self.decision_bytes)
        decision = self._decoded_decision[1]
        return DecisionState(decision=decision, is_complete=self.completed_nonce == decision.nonce, note=note)

    def cache_decision(self, value: bytes, decision: Decision) -> None:
        self._decoded_decision = value, decision

    def recall(self, nonce: str) -> Decision | None:
        """Return the cached or last decoded decision, if it has this nonce."""
        decision = None if self._decoded_decision is None else self._decoded_decision[1]
        return decision if decision is not None and decision.nonce == nonce else None

    def keep_latest_note(self, value: bytes) -> None:
        """Keep the note with the highest number: a driver that was replaced may write its own late.

        A note that cannot be read stays until the next one, so that it is this prefix's error alone.
        """
        try:
            is_older = (
                value
                and self.note_bytes
                and decode_decision_note(value).number < decode_decision_note(self.note_bytes).number
            )
        except BadCommittable:
            is_older = False
        self.note_bytes = self.note_bytes if is_older else value


class DecisionLogFold:
    """A reader of the partition, once and from its start; `next_offset` is the offset to fetch next."""

    def __init__(self, only: str | None = None, next_offset: int = 0) -> None:
        """Read the records of every prefix, or of one.

        Args:
            only: the prefix; the records of all others are skipped.
        """
        self.next_offset = next_offset
        self._only = None
        if only is not None:
            self._only = {(only + suffix).encode(): (only, kind) for suffix, kind in _KIND_BY_SUFFIX.items()}
        self._prefixes: dict[str, _PrefixFold] = {}
        self._pending: dict[int, dict[str, bytes | None]] = {}

    @property
    def prefixes(self) -> Collection[str]:
        """Prefixes that have a decision or a note, as read so far."""
        return [prefix for prefix, fold in self._prefixes.items() if not fold.is_empty]

    def find_state(self, prefix: str) -> DecisionState:
        """Return the state of a prefix, as read so far. Raises: BadCommittable."""
        fold = self._prefixes.get(prefix)
        return DecisionState() if fold is None else fold.state

    def cache_decision(self, prefix: str, value: bytes, decision: Decision) -> None:
        """Keep a decision of this process, to save decoding it: a hundred batches take 0.3 ms."""
        self._fold_of(prefix).cache_decision(value, decision)

    def feed(self, data: Buffer) -> None:
        """Read fetched record batches, from `next_offset` on; the last batch may be incomplete.

        Raises: RecordsError for bytes that are no record batch.
        """
        at = 0
        while (header := _read_complete_header(data, at)) is not None:
            check_batch(data, at)
            if header.next_offset > self.next_offset:
                self._apply_batch(data, at, header)
                self.next_offset = header.next_offset
            at += header.size_bytes

    def _apply_batch(self, data: Buffer, at: int, header: BatchHeader) -> None:
        if header.is_control:
            marker = read_marker(data, at)
            if marker is not None and header.producer_id in self._pending:
                values = self._pending.pop(header.producer_id)
                if marker.control_type is ControlType.COMMIT:
                    for prefix, value in values.items():
                        self._fold_of(prefix).decision_bytes = value
            return
        for record in iter_records(data, at):
            match self._parse_key(record.key):
                case prefix, _KeyKind.DECISION:
                    if header.is_transactional:
                        self._pending.setdefault(header.producer_id, {})[prefix] = record.value
                case prefix, _KeyKind.DONE:
                    if record.value is not None:
                        self._fold_of(prefix).completed_nonce = record.value.decode(errors="replace")
                case prefix, _KeyKind.NOTE:
                    self._fold_of(prefix).keep_latest_note(record.value or b"")

    def _parse_key(self, key: bytes | None) -> tuple[str, _KeyKind] | None:
        """Return prefix and kind of a record that is to be read."""
        if key is None:
            return None
        if self._only is not None:
            return self._only.get(key)
        prefix, separator, kind = key.decode(errors="replace").partition("#")
        record_kind = _KIND_BY_SUFFIX.get(separator + kind)
        return None if record_kind is None else (prefix, record_kind)

    def _fold_of(self, prefix: str) -> _PrefixFold:
        return self._prefixes.setdefault(prefix, _PrefixFold())


class DecisionFold(DecisionLogFold):
    """A reader of the partition for one prefix."""

    def __init__(self, prefix: str, next_offset: int = 0) -> None:
        super().__init__(prefix, next_offset)
        self._prefix = prefix

    @property
    def state(self) -> DecisionState:
        """State of the prefix, as read so far. Raises: BadCommittable."""
        return self.find_state(self._prefix)

    def cache(self, value: bytes, decision: Decision) -> None:
        """Keep a decision of this prefix as `cache_decision` does."""
        self.cache_decision(self._prefix, value, decision)

    def recall(self, nonce: str) -> Decision | None:
        """Return the cached or last decoded decision of this prefix, if it has this nonce."""
        return self._fold_of(self._prefix).recall(nonce)


def _read_complete_header(data: Buffer, at: int) -> BatchHeader | None:
    """Return the header of the batch at `at`; None if the batch is incomplete."""
    size_left = len(data) - at
    if size_left < HEADER_SIZE:
        return None
    header = read_header(data, at)
    return header if header.size_bytes <= size_left else None
