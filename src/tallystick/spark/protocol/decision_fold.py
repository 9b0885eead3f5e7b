"""Fold of the decision topic into the last decision of one prefix. Pure.

All prefixes share one partition. An open transaction of one query holds back the last stable offset, and
would hide the decisions of all other queries from a `read_committed` reader. So the partition is read
uncommitted up to its high watermark, and its control records tell which of the prefix's own records count:
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

Source: docs/adr/0037.
"""

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

    note  the cluster's note of the last decision, where decisions are in a database
    """

    decision: Decision | None = None
    is_complete: bool = False
    note: DecisionNote | None = None


class DecisionFold:
    """A reader of the partition, once and from its start; `next_offset` is the offset to fetch next."""

    def __init__(self, prefix: str, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self._key, self._done_key = build_decision_key(prefix), build_done_key(prefix)
        self._pending: dict[int, bytes | None] = {}
        self._decision_bytes: bytes | None = None
        self._decoded_decision: tuple[bytes, Decision] | None = None
        self._completed_nonce: str | None = None
        self._note_key, self._note_bytes = note_key(prefix), b""

    @property
    def state(self) -> DecisionState:
        """State of the prefix, as read so far. Raises: BadCommittable."""
        note = decode_decision_note(self._note_bytes) if self._note_bytes else None
        if not self._decision_bytes:
            return DecisionState(note=note)
        if self._decoded_decision is None or self._decoded_decision[0] != self._decision_bytes:
            self._decoded_decision = self._decision_bytes, decode_decision(self._decision_bytes)
        decision = self._decoded_decision[1]
        return DecisionState(
            decision=decision, is_complete=self._completed_nonce == decision.nonce, note=note
        )

    def cache_decision(self, value: bytes, decision: Decision) -> None:
        """Keep a decision of this process, to save decoding it: a hundred batches take 0.3 ms."""
        self._decoded_decision = value, decision

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
                value = self._pending.pop(header.producer_id)
                if marker.control_type is ControlType.COMMIT:
                    self._decision_bytes = value
            return
        for record in iter_records(data, at):
            if record.key == self._key and header.is_transactional:
                self._pending[header.producer_id] = record.value
            elif record.key == self._done_key and record.value is not None:
                self._completed_nonce = record.value.decode(errors="replace")
            elif record.key == self._note_key:
                self._keep_latest_note(record.value or b"")

    def _keep_latest_note(self, value: bytes) -> None:
        """Keep the note with the highest number: a driver that was replaced may write its own late."""
        is_older = (
            value
            and self._note_bytes
            and decode_decision_note(value).number < decode_decision_note(self._note_bytes).number
        )
        self._note_bytes = self._note_bytes if is_older else value


def _read_complete_header(data: Buffer, at: int) -> BatchHeader | None:
    """Return the header of the batch at `at`; None if the batch is incomplete."""
    size_left = len(data) - at
    if size_left < HEADER_SIZE:
        return None
    header = read_header(data, at)
    return header if header.size_bytes <= size_left else None
