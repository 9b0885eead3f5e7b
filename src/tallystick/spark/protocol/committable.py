"""Messages between driver, tasks and the decision log, and their encoding. Pure.

    BatchLease  driver -> tasks      the authority to write a batch; it ends with the next claim
    Vote        task -> driver       one task's prepared transaction, and a tally of its rows
    Decision    driver -> log        the whole batch is to be committed; the record is the commit point

They are encoded as JSON, so that a decision can be read with any consumer. Each has its version in `v`. The
next version reads what this one writes; a message of a later version is refused, never half understood.
"""

import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final, TypeVar

from tallystick.kernel.ids import INT16_MAX, INT64_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.value import Value
from tallystick.spark.protocol.errors import BadCommittable

T = TypeVar("T")
Json = dict[str, object]

VERSION: Final = 1
BATCHES_MAX: Final = 100
WRITES_MAX: Final = 1000
"""Number of batches, and of named writes, whose counts and checksums a decision keeps."""

WRITE_ID_BYTES_MAX: Final = 200
"""Low enough that all names fit into a decision."""

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC, and printed as that
_UINT64_MASK: Final = 2**64 - 1


class RowChecksum(Value):
    """A row count, and a checksum independent of row order: the sum of the rows' checksums modulo 2^64."""

    rows: int = 0
    checksum: int = 0

    def combine(self, other: "RowChecksum") -> "RowChecksum":
        return RowChecksum(self.rows + other.rows, (self.checksum + other.checksum) & _UINT64_MASK)

    def __str__(self) -> str:
        return f"{self.rows} rows with checksum {self.checksum:016x}"


class MicroBatch(Value):
    """A micro-batch of a streaming query."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


class BatchWrite(Value):
    """A batch write, by its `write.id`; a write without a name has an empty one and is never a repetition."""

    write_id: str

    def __str__(self) -> str:
        return f"write {self.write_id!r}"


Job = MicroBatch | BatchWrite


class DecisionSummary(Value, kw_only=True):
    """The part of the last decision that a task needs."""

    nonce: str
    query_id: str | None
    batch_id: int | None


class BatchLease(Value, kw_only=True):
    """The authority to write a batch.

    nonce                identifies this execution of the batch
    coordinator          the producer id and epoch of P/coordinator: the next claim replaces them
    transaction_version  the finalized transaction.version at the time of the claim
    decided              the last decision under the prefix
    repeats              the batch write of this name was decided before
    began_ms             time of the claim, by the driver's clock; 0 if an earlier version wrote the lease
    """

    nonce: str
    coordinator: ProducerIdAndEpoch
    transaction_version: int
    last_decision: DecisionSummary | None = None
    repeats: bool = False
    began_ms: int = 0

    @property
    def last_nonce(self) -> str:
        """Nonce of the last decision; empty without one."""
        return "" if self.last_decision is None else self.last_decision.nonce


class Participant(Value, kw_only=True):
    """One prepared transaction: its transactional id, and the producer id and epoch that wrote it."""

    transactional_id: str
    identity: ProducerIdAndEpoch


class Vote(Value, kw_only=True):
    """The result of one task.

    participant  its transaction; None where it had no rows or skipped them
    skipped      the batch was decided before: its rows were read, counted and dropped
    tallies      one for each sink of the query
    mode         the transaction's mode (2pc, keep or resume); empty without a transaction
    began_ms     the lease's
    last_nonce   of the lease's last decision; empty if there was none, or an earlier version voted
    sinks        the names of the sinks, one for each tally; none if an earlier version voted
    """

    nonce: str
    coordinator: ProducerIdAndEpoch
    transaction_version: int
    job: Job
    row_checksums: tuple[RowChecksum, ...]
    participant: Participant | None = None
    is_skipped: bool = False
    mode: str = ""
    began_ms: int = 0
    last_nonce: str = ""
    sinks: tuple[str, ...] = ()


def build_empty_vote(lease: BatchLease) -> Vote:
    """Return a vote for the abort of a batch whose tasks have not voted: it carries the lease."""
    return Vote(
        nonce=lease.nonce,
        coordinator=lease.coordinator,
        transaction_version=lease.transaction_version,
        job=BatchWrite(""),
        row_checksums=(),
        began_ms=lease.began_ms,
    )


class JobChecksums(Value):
    """The record of a decided job: the batch's number or the write's name, and a tally for each sink.

    `sinks` are their names; there are none if an earlier version decided.
    """

    name: int | str
    row_checksums: tuple[RowChecksum, ...]
    sinks: tuple[str, ...] = ()


class Decision(Value, kw_only=True):
    """The decision to commit all of these participants. Only the last decision of a prefix counts.

    query_id   the streaming query that writes under the prefix; None before its first batch
    batches    its last batches, in order; the last one is the last decided
    writes     the last named batch writes
    mode       the mode of the prepared transactions
    offsets    the sources' offsets at the end of the last batch as Spark's offset log has them, if they could
               be read
    number     the number of this decision under its prefix; 0 if an earlier version decided
    """

    nonce: str
    participants: tuple[Participant, ...]
    transaction_version: int
    decided_ms: int
    query_id: str | None = None
    batches: tuple[JobChecksums, ...] = ()
    writes: tuple[JobChecksums, ...] = ()
    mode: str = ""
    offsets: str | None = None
    number: int = 0

    @property
    def batch_id(self) -> int | None:
        """Number of the last decided batch of the query."""
        return int(self.batches[-1].name) if self.batches else None

    @property
    def summary(self) -> DecisionSummary:
        return DecisionSummary(nonce=self.nonce, query_id=self.query_id, batch_id=self.batch_id)

    def __str__(self) -> str:
        subject = f"batch {self.batch_id} of query {self.query_id}" if self.batches else "no batch of a query"
        count = len(self.participants)
        noun = "transaction" if count == 1 else "transactions"
        return f"{subject}, {count} {noun}, decided at {_format_utc(self.decided_ms)}"


def _format_utc(ms: int) -> str:
    """Return a time for people; what a log holds may be one that no calendar has."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=ms):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return f"{ms} ms"


class DecisionNote(Value, kw_only=True):
    """The cluster's note of a decision that is kept in a database, which reveals that a database lost it.

    number   the decision's number
    what     its last batch, as text for people
    offsets  the sources' offsets at the end of that batch
    """

    number: int
    description: str
    offsets: str | None = None


# ------------------------------------------------------------------------------------- bytes


def encode_lease(lease: BatchLease) -> bytes:
    d = lease.last_decision
    return _encode(
        kind="lease",
        nonce=lease.nonce,
        coordinator=_encode_identity(lease.coordinator),
        tv=lease.transaction_version,
        decided=None if d is None else [d.nonce, d.query_id, d.batch_id],
        repeats=lease.repeats,
        began_ms=lease.began_ms,
    )


def decode_lease(data: bytes) -> BatchLease:
    def build(message: Json) -> BatchLease:
        last_decision = None
        if message["decided"] is not None:
            nonce, query_id, batch_id = _expect_list(message["decided"])
            last_decision = DecisionSummary(
                nonce=_expect_str(nonce),
                query_id=_expect_optional_str(query_id),
                batch_id=_expect_optional_int(batch_id),
            )
        return BatchLease(
            nonce=_expect_str(message["nonce"]),
            coordinator=_decode_identity(message["coordinator"]),
            transaction_version=_expect_int(message["tv"]),
            last_decision=last_decision,
            repeats=_expect_bool(message["repeats"]),
            began_ms=_expect_int(message.get("began_ms", 0)),
        )

    return _decode(data, "lease", build)


def encode_vote(vote: Vote) -> bytes:
    return _encode(
        kind="vote",
        nonce=vote.nonce,
        coordinator=_encode_identity(vote.coordinator),
        tv=vote.transaction_version,
        job=_encode_job(vote.job),
        tallies=_encode_checksums(vote.row_checksums),
        txn=None if vote.participant is None else _encode_participant(vote.participant),
        skipped=vote.is_skipped,
        mode=vote.mode,
        began_ms=vote.began_ms,
        last_nonce=vote.last_nonce,
        sinks=list(vote.sinks),
    )


def decode_vote(data: bytes) -> Vote:
    return _decode(
        data,
        "vote",
        lambda fields: Vote(
            nonce=_expect_str(fields["nonce"]),
            coordinator=_decode_identity(fields["coordinator"]),
            transaction_version=_expect_int(fields["tv"]),
            job=_decode_job(fields["job"]),
            row_checksums=_decode_checksums(fields["tallies"]),
            participant=None if fields["txn"] is None else _decode_participant(fields["txn"]),
            is_skipped=_expect_bool(fields["skipped"]),
            mode=_expect_str(fields["mode"]),
            began_ms=_expect_int(fields.get("began_ms", 0)),
            last_nonce=_expect_str(fields.get("last_nonce", "")),
            sinks=_decode_names(fields.get("sinks", [])),
        ),
    )


def encode_decision(decision: Decision) -> bytes:
    # Sinks hardly ever change: each set of them is written once, and the jobs have its place in the list.
    sinks = list(dict.fromkeys(each.sinks for each in (*decision.batches, *decision.writes)))
    return _encode(
        kind="decision",
        nonce=decision.nonce,
        txns=[_encode_participant(each) for each in decision.participants],
        tv=decision.transaction_version,
        decided_ms=decision.decided_ms,
        query=decision.query_id,
        batches=[_encode_job_checksums(each) for each in decision.batches],
        writes=[_encode_job_checksums(each) for each in decision.writes],
        mode=decision.mode,
        offsets=decision.offsets,
        number=decision.number,
        sinks=[list(names) for names in sinks],
        batch_sinks=[sinks.index(each.sinks) for each in decision.batches],
        write_sinks=[sinks.index(each.sinks) for each in decision.writes],
    )


def decode_decision(data: bytes) -> Decision:
    return _decode(
        data,
        "decision",
        lambda fields: Decision(
            nonce=_expect_str(fields["nonce"]),
            participants=tuple(_decode_participant(each) for each in _expect_list(fields["txns"])),
            transaction_version=_expect_int(fields["tv"]),
            decided_ms=_expect_int(fields["decided_ms"]),
            query_id=_expect_optional_str(fields["query"]),
            batches=_decode_jobs(fields, "batches", "batch_sinks", _expect_int),
            writes=_decode_jobs(fields, "writes", "write_sinks", _expect_str),
            mode=_expect_str(fields["mode"]),
            offsets=_expect_optional_str(fields["offsets"]),
            number=_expect_int(fields.get("number", 0)),
        ),
    )


def encode_decision_note(note: DecisionNote) -> bytes:
    return _encode(kind="noted", number=note.number, what=note.description, offsets=note.offsets)


def decode_decision_note(data: bytes) -> DecisionNote:
    return _decode(
        data,
        "noted",
        lambda fields: DecisionNote(
            number=_expect_int(fields["number"]),
            description=_expect_str(fields["what"]),
            offsets=_expect_optional_str(fields["offsets"]),
        ),
    )


def _encode(**contents: object) -> bytes:
    return json.dumps({"v": VERSION, **contents}, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(data: bytes, kind: str, build: Callable[[Json], T]) -> T:
    """Parse a message of this kind. Raises: BadCommittable for any other bytes, kind or version."""
    try:
        message = json.loads(data)
        version = message["v"] if isinstance(message, dict) else None
        if version != VERSION:
            raise BadCommittable(
                f"a {kind} of version {version!r}, and this one reads {VERSION}: a later tallystick wrote it"
            )
        if message["kind"] != kind:
            raise BadCommittable(f"a {message['kind']!r} where a {kind} was expected")
        return build(message)
    except (ValueError, KeyError, TypeError) as exc:
        raise BadCommittable(f"{data[:60]!r} is no {kind}: {type(exc).__name__} {exc}") from exc


def _encode_identity(pair: ProducerIdAndEpoch) -> list[int]:
    return [pair.producer_id, pair.epoch]


def _decode_identity(value: object) -> ProducerIdAndEpoch:
    producer_id, epoch = _expect_list(value)
    return ProducerIdAndEpoch(
        ProducerId(_expect_int(producer_id, most=INT64_MAX)),
        ProducerEpoch(_expect_int(epoch, most=INT16_MAX)),
    )


def _encode_participant(participant: Participant) -> list[object]:
    return [participant.transactional_id, *_encode_identity(participant.identity)]


def _decode_participant(value: object) -> Participant:
    transactional_id, *pair = _expect_list(value)
    return Participant(transactional_id=_expect_str(transactional_id), identity=_decode_identity(pair))


def _encode_job(job: Job) -> list[object]:
    return [job.query_id, job.batch_id] if isinstance(job, MicroBatch) else [job.write_id]


def _decode_job(value: object) -> Job:
    name, *number = _expect_list(value)
    if not number:
        return BatchWrite(_expect_str(name))
    (batch_id,) = number
    return MicroBatch(_expect_str(name), _expect_int(batch_id))


def _encode_checksums(row_checksums: Iterable[RowChecksum]) -> list[object]:
    # As a string: not every JSON parser has 64-bit integers.
    return [[each.rows, f"{each.checksum:016x}"] for each in row_checksums]


def _decode_checksums(value: object) -> tuple[RowChecksum, ...]:
    return tuple([_decode_checksum(each) for each in _expect_list(value)])


def _decode_checksum(value: object) -> RowChecksum:
    rows, checksum = _expect_list(value)
    return RowChecksum(_expect_int(rows), int(_expect_str(checksum), 16))


def _encode_job_checksums(job_checksums: JobChecksums) -> list[object]:
    return [job_checksums.name, *_encode_checksums(job_checksums.row_checksums)]


def _decode_jobs(
    fields: Json, jobs: str, places: str, name_of: Callable[[object], int | str]
) -> tuple[JobChecksums, ...]:
    """Decode jobs with their sinks, of which earlier versions wrote nothing."""
    sinks = [_decode_names(each) for each in _expect_list(fields.get("sinks", [[]]))]
    values = _expect_list(fields[jobs])
    numbers = [_expect_int(each) for each in _expect_list(fields.get(places, [0] * len(values)))]
    if len(numbers) != len(values) or any(number >= len(sinks) for number in numbers):
        raise ValueError(f"{places} do not fit the {jobs}")
    return tuple(
        _decode_job_checksums(value, name_of, sinks[number])
        for value, number in zip(values, numbers, strict=True)
    )


def _decode_job_checksums(
    value: object, name_of: Callable[[object], int | str], sinks: tuple[str, ...]
) -> JobChecksums:
    name, *row_checksums = _expect_list(value)
    return JobChecksums(name_of(name), _decode_checksums(row_checksums), sinks)


def _decode_names(value: object) -> tuple[str, ...]:
    return tuple(_expect_str(each) for each in _expect_list(value))


def _expect_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _expect_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _expect_int(value: object, most: int = INT64_MAX) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise TypeError(f"{value!r} is not a number from 0 to {most}")
    return value


def _expect_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _expect_optional_str(value: object) -> str | None:
    return None if value is None else _expect_str(value)


def _expect_optional_int(value: object) -> int | None:
    return None if value is None else _expect_int(value)
